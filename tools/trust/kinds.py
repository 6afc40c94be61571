"""Kinds of files that are spoilt: a good set of each, ways to spoil it, and what reads it."""

import json
import random
import tomllib
from pathlib import Path
from typing import Any

from tools.trust.jobs import RECIPE
from tools.trust.mutate import (
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
        """Change something in the place; what was done."""
        raise NotImplementedError

    def load(self) -> None:
        raise NotImplementedError


class ModelFolders(Kind):
    name = "model folders"

    def __init__(self, folder: Path) -> None:
        from beamtree.classifier.model import ModelSettings, create_model, save_model
        from beamtree.data.task import find_task

        super().__init__(folder)
        settings = ModelSettings("ebt-grc", d_model=8, embedding_size=6, classifier_hidden=8)
        save_model(create_model(settings, find_task("listops")), self.place, {"epoch": 3})
        self.good = _contents(self.place)

    def spoil(self, draw: random.Random) -> str:
        from beamtree.files.tensors import load_tensors

        name = draw.choice(sorted(self.good))
        path, weights = self.place / name, self.place / "model.safetensors"
        match draw.randrange(6):
            case 0:
                path.write_bytes(spoil_bytes(draw, self.good[name]))
            case 1:
                spoil_place(draw, path)
            case 2:
                weights.write_bytes(hostile_safetensors(draw))
            case 3:
                tensors, notes = load_tensors(weights)
                _spoil_tensors(draw, tensors, weights, notes)
            case 4:
                (self.place / "config.json").write_text(_spoilt(draw, self.good["config.json"]))
            case _:
                (self.place / "vocabulary.json").write_text(_spoilt(draw, self.good["vocabulary.json"]))
        return name

    def load(self) -> None:
        from beamtree.classifier.model import load_model
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
        self.good = {name: (self.place / name).read_bytes() for name in ("config.json", "model.safetensors")}

    def spoil(self, draw: random.Random) -> str:
        name = draw.choice(sorted(self.good))
        match draw.randrange(4):
            case 0:
                (self.place / name).write_bytes(spoil_bytes(draw, self.good[name]))
            case 1:
                spoil_place(draw, self.place / name)
            case 2:
                (self.place / "model.safetensors").write_bytes(hostile_safetensors(draw))
            case _:
                (self.place / "config.json").write_text(_spoilt(draw, self.good["config.json"]))
        return name

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

    def spoil(self, draw: random.Random) -> str:
        from beamtree.files.tensors import load_tensors, save_tensors

        path = self.place / "state.safetensors"
        tensors, notes = load_tensors(path)
        match draw.randrange(5):
            case 0:
                path.write_bytes(spoil_bytes(draw, self.good[path.name]))
                return "bytes"
            case 1:
                spoil_place(draw, path)
                return "place"
            case 2:
                path.write_bytes(hostile_safetensors(draw))
                return "header"
            case 3:
                _spoil_tensors(draw, tensors, path, notes)
                return "tensors"
            case _:
                save_tensors(path, tensors, spoil_json(draw, notes))
                return "notes"

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

    def spoil(self, draw: random.Random) -> str:
        path = self.place / "recipe.toml"
        match draw.randrange(4):
            case 0:
                path.write_bytes(spoil_bytes(draw, self.good[path.name]))
            case 1:
                spoil_place(draw, self.place / draw.choice(sorted(self.good)))
                if not path.is_symlink() and path.is_file() and not path.stat().st_size:
                    path.write_text('extends = "base.toml"\n')
            case 2:
                names = [*NAMES, "recipe.toml", "base.toml", "/dev/zero", "..", "/dev/stdin"]
                path.write_text(f"extends = {json.dumps(draw.choice(names))}\n")
            case _:
                table = spoil_json(draw, tomllib.loads(RECIPE))
                path.write_text(
                    "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in table.items())
                )
        return "recipe"

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

    def spoil(self, draw: random.Random) -> str:
        name = draw.choice(sorted(self.good))
        path = self.place / name
        match draw.randrange(3):
            case 0:
                path.write_bytes(spoil_bytes(draw, self.good[name]))
            case 1:
                spoil_place(draw, path)
            case _ if name == "eval.json":
                path.write_text(_spoilt(draw, self.good[name]))
            case _:
                lines = self.good["metrics.jsonl"].splitlines()
                place = draw.randrange(len(lines))
                lines[place] = _spoilt(draw, lines[place]).encode()
                (self.place / "metrics.jsonl").write_bytes(b"\n".join(lines))
        return name

    def load(self) -> None:
        from beamtree.paper.report.pages import build_report, to_html, to_markdown

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


def _spoil_tensors(draw: random.Random, tensors: dict[str, Any], path: Path, notes: Any) -> None:
    """Other tensors under a checksum that is right."""
    import torch

    from beamtree.files.tensors import save_tensors

    name = draw.choice(sorted(tensors))
    match draw.randrange(7):
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
        case _:
            notes = hostile_value(draw)
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
    return {path.name: path.read_bytes() for path in folder.iterdir()}
