"""Kinds of files that are spoilt: a good set of each, ways to spoil it, and what reads it."""

import json
import random
import tomllib
from pathlib import Path
from typing import Any

from tools.trust.jobs import RECIPE
from tools.trust.spoil import (
    NAMES,
    hostile_safetensors,
    hostile_value,
    spoil_bytes,
    spoil_json,
    spoil_place,
)


class Kind:
    """Files of one kind: a good set, ways to spoil it, and what reads it."""

    name = ""
    loaded = refused = 0

    def __init__(self, folder: Path) -> None:
        self.place = folder / self.name.replace(" ", "-")
        self.good: dict[str, bytes] = {}

    def spoil(self, draw: random.Random) -> str:
        """Change a file in the place: its bytes, itself, or what it says; which one."""
        name = draw.choice(sorted(self.good))
        path = self.place / name
        match draw.randrange(4):
            case 0:
                path.write_bytes(spoil_bytes(draw, self.good[name]))
            case 1:
                spoil_place(draw, path)
            case _:
                self.spoil_content(draw, path)
        return name

    def spoil_content(self, draw: random.Random, path: Path) -> None:
        """By what the file is."""
        match path.suffix:
            case ".safetensors" if draw.random() < 0.5:
                path.write_bytes(hostile_safetensors(draw))
            case ".safetensors":
                _spoil_tensors(draw, path)
            case ".json":
                path.write_text(_spoilt(draw, self.good[path.name]))
            case ".jsonl":
                lines = self.good[path.name].splitlines()
                place = draw.randrange(len(lines))
                lines[place] = _spoilt(draw, lines[place]).encode()
                path.write_bytes(b"\n".join(lines))
            case ".toml":
                table = spoil_json(draw, tomllib.loads(self.good[path.name].decode()))
                path.write_text(
                    "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in table.items())
                )

    def load(self) -> None:
        raise NotImplementedError


class ModelFolders(Kind):
    name = "model folders"

    def __init__(self, folder: Path) -> None:
        from beamtree.classifier.model import ModelSettings, create_model
        from beamtree.classifier.model_folder import save_model
        from beamtree.data.task import find_task

        super().__init__(folder)
        settings = ModelSettings("ebt-grc", d_model=8, embedding_size=6, classifier_hidden=8)
        save_model(create_model(settings, find_task("listops")), self.place, {"epoch": 3})
        self.good = _contents(self.place)

    def load(self) -> None:
        from beamtree.classifier.model_folder import load_model
        from beamtree.errors import BeamtreeError

        model = load_model(self.place)
        try:
            (prediction,) = model.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"])
        except BeamtreeError as error:  # the weights are known by now, not where they came from
            raise BeamtreeError(f"{self.place.name}: {error}") from error
        if not 0 <= prediction.probability <= 1:
            raise ValueError(f"a probability of {prediction.probability}")


class BlockFolders(Kind):
    name = "block folders"

    def __init__(self, folder: Path) -> None:
        from beamtree import BeamTreeEncoder

        super().__init__(folder)
        BeamTreeEncoder(8, beam_size=2).save_pretrained(self.place)
        self.good = _contents(self.place)

    def load(self) -> None:
        import torch

        from beamtree import BeamTreeEncoder

        BeamTreeEncoder.from_pretrained(self.place)(torch.zeros(1, 3, 8))


class Checkpoints(Kind):
    name = "checkpoints"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from beamtree.training.checkpoint import Position, random_state, save_checkpoint

        model, optimizer, schedule = _learner()
        loss = sum((weight**2).sum() for weight in model.parameters())
        loss.backward()
        optimizer.step()
        schedule.judge(1.0)
        import torch

        cpu = torch.device("cpu")
        by_process = {"random": random_state(cpu)[None], "sums": torch.zeros(1, 2, dtype=torch.float64)}
        position = Position("0" * 64, 1, 2, 7, 0.5, [{"epoch": 1, "best": True}])
        path = self.place / "state.safetensors"
        save_checkpoint(
            path,
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            position=position,
            by_process=by_process,
        )
        self.good = _contents(self.place)

    def load(self) -> None:
        import torch

        from beamtree.training.checkpoint import load_checkpoint, set_random_state

        model, optimizer, schedule = _learner()
        position, by_process = load_checkpoint(
            self.place / "state.safetensors", model=model, optimizer=optimizer, schedule=schedule
        )
        set_random_state(by_process["random"][0], torch.device("cpu"))
        torch.zeros(2, dtype=torch.float64).copy_(by_process["sums"][0])
        if position.epochs < 0 or not all(record["epoch"] for record in position.history):
            raise ValueError("a position that cannot be was taken")


class Recipes(Kind):
    name = "recipes"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.good = {"recipe.toml": RECIPE.encode(), "base.toml": b'extends = "listops-quick"\n'}

    def spoil_content(self, draw: random.Random, path: Path) -> None:
        path = self.place / "recipe.toml"
        match draw.randrange(3):
            case 0:
                path.write_text('extends = "base.toml"\n')
                spoil_place(draw, self.place / "base.toml")
            case 1:
                names = [*NAMES, "recipe.toml", "base.toml", "/dev/zero", "..", "/dev/stdin"]
                path.write_text(f"extends = {json.dumps(draw.choice(names))}\n")
            case _:
                super().spoil_content(draw, path)

    def load(self) -> None:
        from beamtree.classifier.model import create_model
        from beamtree.data.task import find_task
        from beamtree.errors import BeamtreeError
        from beamtree.training.recipe import load_recipe

        recipe = load_recipe(self.place / "recipe.toml")
        try:
            create_model(recipe.model, find_task("listops"))
        except BeamtreeError as error:  # the settings are known by now, not where they came from
            raise BeamtreeError(f"{self.place.name}: {error}") from error


class RunFolders(Kind):
    name = "run folders of a report"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import beamtree

        run = Path(beamtree.__file__).parents[1] / "docs" / "runs" / "listops-seed0"
        self.good = {
            name: (run / name).read_bytes() for name in ("recipe.toml", "metrics.jsonl", "eval.json")
        }

    def load(self) -> None:
        from beamtree.paper.report import build_report, to_html, to_markdown

        built = build_report([self.place], ())
        to_markdown(built, "")
        to_html(built, "")


def _learner() -> Any:
    from beamtree.classifier.model import ModelSettings, create_model
    from beamtree.data.task import find_task
    from beamtree.training.ranger import Ranger
    from beamtree.training.recipe import TrainingSettings
    from beamtree.training.schedule import Schedule

    settings = ModelSettings("recurrent-grc", d_model=4, embedding_size=4, classifier_hidden=4)
    model = create_model(settings, find_task("listops"))
    optimizer = Ranger(model.parameters(), lr=0.1)
    return model, optimizer, Schedule(TrainingSettings(), optimizer)


def _spoil_tensors(draw: random.Random, path: Path) -> None:
    """Other tensors or notes under a checksum that is right."""
    import torch

    from beamtree.files.tensors import load_tensors, save_tensors

    tensors, notes = load_tensors(path)
    name = draw.choice(sorted(tensors))
    match draw.randrange(8):
        case 0:
            del tensors[name]
        case 1:
            tensors[draw.choice(NAMES[:-1]).replace("\0", "") or "more"] = torch.zeros(2)
        case 2:
            tensors[name] = tensors[name].reshape(-1)[:-1].clone()
        case 3:
            kinds = [torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8]
            tensors[name] = tensors[name].to(draw.choice(kinds))
        case 4:
            tensors[name] = torch.zeros(draw.choice([(0,), (), (1, 1, 1), (3, 3), (100_000,)]))
        case 5:
            if tensors[name].is_floating_point():
                tensors[name].view(-1)[0] = draw.choice([float("nan"), float("inf"), 3e38])
        case 6:
            notes = hostile_value(draw)
        case _:
            notes = spoil_json(draw, notes or {"epoch": 1})
    try:
        save_tensors(path, tensors, notes)
    except ValueError:  # JSON has no such number
        save_tensors(path, tensors, {})


def _spoilt(draw: random.Random, content: bytes) -> str:
    if draw.randrange(20) == 0:
        swelling = "[" + "[]," * draw.choice([1_000_000, 5_000_000, 20_000_000]) + "0]"
        texts = ["[" * 100_000, '["a", ' * 50_000, "1" * 100_000, "{}", "[]", "null", '"x"', swelling]
        return draw.choice(texts)
    value = json.loads(content)
    if isinstance(value, list) and draw.randrange(10) == 0:
        return json.dumps([*map(str, range(200_000)), "1"])
    try:
        return json.dumps(spoil_json(draw, value))
    except ValueError:
        return "9" * 6000


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, int) and not isinstance(value, bool) and value > 2**70:
        return hex(value)  # which no limit on digits stops
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


def _contents(folder: Path) -> dict[str, bytes]:
    """All but words for people."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".md"}
