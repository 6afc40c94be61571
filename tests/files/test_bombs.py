"""Files that are made to fill the memory are refused before they do, whatever reads them."""

import gzip
import io
import itertools
import json
import lzma
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import attempt, call
from peaks import Refused, refuse_alone
from small_models import small_model

from beamtree import BeamTreeEncoder
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.data.task import TASKS, BadRows, find_task
from beamtree.data.vectors import read_vectors
from beamtree.errors import BeamtreeError
from beamtree.files.tensors import save_tensors
from beamtree.paper.report import build_report
from beamtree.training.recipe import load_recipe

MOST = 300 << 20  # bytes that refusing a file may take
PIECE = 16 << 20  # bytes, packed once and repeated
LONG = (8 << 20) - 100  # characters of a line that is just read


def prepare() -> None:
    """What a process holds before it meets a file: everything is imported, and a model has been used."""
    import beamtree.explorer.models
    import beamtree.training.run  # noqa: F401

    for name in TASKS:
        find_task(name)
    call("parse", "listops-ebt-grc", "5")


def pack(path: Path, piece: bytes, times: int, first: bytes = b"") -> Path:
    packed = gzip.compress if path.suffix == ".gz" else lzma.compress
    path.write_bytes((packed(first) if first else b"") + packed(piece) * times)
    return path


# What is done with a file, by name, as the process that is measured knows it.


def by_task(path: Path) -> int:
    """Read by the task that the file is named after, every row kept."""
    return len(list(find_task(path.name.split("-")[0]).read_file(path)))


def by_task_skipping(path: Path) -> int:
    return len(list(find_task(path.name.split("-")[0]).read_file(path, BadRows(skip=True))))


def by_command(*words: object, input: str | None = None) -> str:
    done = attempt(*words, input=input)
    last = done.output.strip().rpartition("\n")[2]
    if done.exit_code == 2 and last.startswith("beamtree: "):
        raise BeamtreeError(last)
    return f"rc {done.exit_code}, {done.exception!r}, {done.output[-200:]}"


def by_parse(path: Path) -> str:
    return by_command("parse", "listops-ebt-grc", "--file", path, "--strict")


def by_parse_to_a_file(path: Path) -> str:
    return by_command("parse", "listops-ebt-grc", "--file", path, "--out", path.parent / "out.jsonl")


def by_eval(path: Path) -> str:
    return by_command("eval", "listops-ebt-grc", path)


def by_train(path: Path) -> str:
    return by_command("train", "own", "--data", path, "--out", path.parent / "run")


def by_vectors(path: Path) -> Any:
    return read_vectors(path, {"a", *map(str, range(1000))})


def by_model(path: Path) -> Any:
    return load_model(path)


def by_block(path: Path) -> Any:
    return BeamTreeEncoder.from_pretrained(path)


def by_recipe(path: Path) -> Any:
    return load_recipe(path)


def by_report(path: Path) -> Any:
    return build_report([path])


def by_resuming_a_run(path: Path) -> Any:
    return by_command("train", "--resume", path)


def by_resuming_a_parse(path: Path) -> Any:
    out = path.parent / "half.json"
    return by_command("parse", "listops-ebt-grc", "--file", path, "--out", out, "--resume")


def archives(folder: Path) -> Iterator[tuple[str, Path]]:
    """A line of 1 GiB, and a milliard of short rows, sound and unsound ones, in an archive of nothing."""
    for suffix in (".gz", ".xz"):
        line = pack(folder / f"line{suffix}", b"a" * PIECE, 64)
        for function in ("by_parse", "by_parse_to_a_file", "by_eval", "by_train"):
            yield function, line
        yield "by_vectors", pack(folder / f"line.txt{suffix}", b"a" * PIECE, 64)
        for task in TASKS:
            yield "by_task", pack(folder / f"{task}-line{suffix}", b"a" * PIECE, 64)
        yield "by_task", pack(folder / f"listops-rows{suffix}", b"3\t3\n" * (PIECE // 4), 64)
        yield "by_task_skipping", pack(folder / f"listops-bad{suffix}", b"3\n" * (PIECE // 2), 64)
        blank = b"label\ttext\n"
        yield "by_task", pack(folder / f"own-blank{suffix}", b"\n" * PIECE, 64, first=blank)
    greedy = bytearray(lzma.compress(os.urandom(500).hex().encode()))
    end = 12 + 4 * (greedy[12] + 1) - 4  # of the header of a block, of which the fifth byte is the dictionary
    greedy[12 + 4] = 40
    greedy[end : end + 4] = zlib.crc32(bytes(greedy[12:end])).to_bytes(4, "little")
    (folder / "listops-greedy.xz").write_bytes(greedy)
    yield "by_task", folder / "listops-greedy.xz"


def lines(folder: Path) -> Iterator[tuple[str, Path]]:
    """Lines just as long as may be, whose parts would take thirty times as much."""
    number = itertools.count()

    def of(task: str, text: str, suffix: str = ".tsv") -> tuple[str, Path]:
        path = folder / f"{task}-{next(number)}{suffix}"
        path.write_text(text, encoding="utf-8")
        return "by_task", path

    def many(unit: str) -> str:
        return unit * (LONG // len(unit))

    for unit in ("ab ", "я ", "[SM ", "1 ", "[MAX 1 ] "):
        yield of("listops", "1\t" + many(unit))
        path = folder / f"line-{next(number)}"
        path.write_text(many(unit))
        yield "by_parse", path
    yield of("listops", many("я\t"))
    for unit in ("ab ", "я ", "( ", "a "):
        yield of("logic", "=\ta\t" + many(unit))
    yield of("logic", many("я\t"))
    unique = "".join(f"я{i:x} " for i in range(1_000_000))
    for text in (many("(3 "), f"(3 {unique})", "(3 " * 200_000 + "(2 ab) " * 9000 + ")" * 200_000):
        yield of("sst5", text, ".txt")
    for unit in ("ab ", "я ", "a,", "—"):
        yield of("imdb", "label\ttext\n1\t" + many(unit))
        yield of("own", "label\ttext\nx\t" + many(unit))
    for unit in ("[],", "{},", '{"a":1},', "1.5,", '"ab",'):
        yield of("snli", "[" + many(unit), ".jsonl")
    yield of("own", many("я\t"))
    yield of("own", "label\ttext\n" + many("я\t"))
    yield of("own", "label,text\n" + many("я,"), ".csv")
    yield of("own", "label,text\n" + '"x\n",' * 4_000_000, ".csv")
    yield of("own", "label\ttext\n" + "\u3000\n" * 8_000_000)


def vectors(folder: Path) -> Iterator[tuple[str, Path]]:
    with zipfile.ZipFile(folder / "line.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("line.txt", b"a" * PIECE * 8)
    with zipfile.ZipFile(folder / "contents.zip", "w") as archive:
        for i in range(20_000):
            archive.writestr(f"{i:0200}.md", "")
    with zipfile.ZipFile(folder / "lzma.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", "a 1 2\n")
    (folder / "wide.txt").write_text("a " + "1 " * 3_000_000 + "\n")
    names = ["line.zip", "contents.zip", "lzma.zip", "wide.txt"]
    for name, words, shape in (
        ("rows", 2, (1 << 28, 1)),
        ("columns", 2, (2, 1 << 28)),
        ("sound", 4096, (4096, 65536)),
    ):
        inside = folder / name
        inside.mkdir()
        (inside / "words.txt").write_text("a\n" * words)
        header = io.BytesIO()
        entry = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, entry)
        pack(inside / "v.npy.gz", bytes(PIECE), 64, first=header.getvalue())
        names.append(f"{name}/v.npy.gz")
    (folder / "words").mkdir()
    np.save(folder / "words" / "v.npy", np.ones((2, 3), np.float32))
    pack(folder / "words" / "words.txt.xz", b"a\n" * (PIECE // 2), 64)
    names.append("words/v.npy")
    for name in names:
        yield "by_vectors", folder / name


def folders(folder: Path) -> Iterator[tuple[str, Path]]:
    """Model folders, blocks and runs of which one file is made to swell."""
    number = itertools.count()
    large = ["[" + unit * (63_000_000 // len(unit)) + "0]" for unit in ("[],", "{},")]
    small = ["[" + unit * (3_900_000 // len(unit)) + "0]" for unit in ("[],", '{"a":1},', '"ab",')]

    def model(name: str, content: str | None = None) -> Path:
        path = folder / f"model{next(number)}"
        save_model(small_model("recurrent-grc"), path)
        if content is not None:
            (path / name).write_text(content)
        return path

    def block(name: str, content: str) -> Path:
        path = folder / f"block{next(number)}"
        BeamTreeEncoder(4).save_pretrained(path)
        (path / name).write_text(content)
        return path

    for text in (*large, *small):
        yield "by_model", model("config.json", text)
        yield "by_model", model("vocabulary.json", text)
        yield "by_block", block("config.json", text)
    yield "by_model", model("vocabulary.json", "[" + "[]," * 5_000_000 + "0]")
    yield "by_model", model("vocabulary.json", '["😀' + "a" * 60_000_000 + '"]')
    yield "by_model", model("vocabulary.json", json.dumps([f"{i:x}" for i in range(999_000)]))
    yield "by_model", model("vocabulary.json", json.dumps({f"{i:x}": f"{i:x}" for i in range(900_000)}))
    for text in small:
        for metadata in ({"notes": text, "sha256": ""}, text):
            path = model("")
            save_notes(path / "model.safetensors", metadata)
            yield "by_model", path
    entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(f'"{i:x}":{entry}' for i in range(500_000)) + "}"
    path = model("")
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    yield "by_model", path
    for make, function in ((model, "by_model"), (block, "by_block")):
        path = make("README.md", "")
        save_tensors(path / "model.safetensors", {"a": torch.zeros(1 << 27)}, {})
        yield function, path
    tables = "".join(f"{i:x}.a={{}}\n" for i in range(350_000))
    for text in ("a." * 120_000 + "a = 1", "[" + "a." * 120_000 + "a]", '"a".' * 60_000 + "a = 1", tables):
        path = folder / f"recipe{next(number)}.toml"
        path.write_text(text)
        yield "by_recipe", path
    for i in range(1200):
        (folder / f"chain{i}.toml").write_text(f'extends = "chain{i + 1}.toml"\n')
    yield "by_recipe", folder / "chain0.toml"
    yield from runs(folder, [large[0], *small])


def save_notes(path: Path, metadata: Any) -> None:
    """A file without tensors whose notes are these, under a checksum that is right or none."""
    import hashlib

    from safetensors.torch import save

    if isinstance(metadata, dict):
        metadata = json.dumps(metadata | {"sha256": hashlib.sha256(metadata["notes"].encode()).hexdigest()})
    path.write_bytes(save({}, {"beamtree": metadata}))


def runs(folder: Path, texts: list[str]) -> Iterator[tuple[str, Path]]:
    shipped = Path(__file__).parents[2] / "docs" / "runs" / "listops-seed0"
    spoilt = ("metrics.jsonl", "eval.json", "data.json", "recipe.toml")
    for name, text in itertools.product(spoilt, texts):
        run = folder / f"run-{name}-{texts.index(text)}"
        run.mkdir()
        for good in ("recipe.toml", "metrics.jsonl", "eval.json"):
            (run / good).write_bytes((shipped / good).read_bytes())
        (run / name).write_text(text)
        yield "by_report", run
    run = folder / "run-weights"
    (run / "best").mkdir(parents=True)
    for good in ("recipe.toml", "metrics.jsonl", "eval.json"):
        (run / good).write_bytes((shipped / good).read_bytes())
    with (run / "best" / "model.safetensors").open("wb") as file:
        file.truncate(1 << 30)
    yield "by_report", run
    begun = folder / "begun"
    small = [f"--set=model.{key}=4" for key in ("d_model", "embedding_size", "classifier_hidden")]
    sampled = ["--set=task.sampled.train=40", "--set=task.sampled.dev=12", "--set=task.sampled.max_length=12"]
    call("train", "listops-quick", *small, *sampled, "--out", begun, "--max-steps", 1)
    save_tensors(begun / "checkpoint" / "state.safetensors", {"model.a": torch.zeros(1 << 27)}, {"format": 1})
    yield "by_resuming_a_run", begun
    (folder / "lines.txt").write_text("5\n" * 3)
    (folder / "half.json.part0of1").write_text("x\n")
    (folder / "half.json").write_text("")
    (folder / "half.json.job.json").write_text(texts[0])
    yield "by_resuming_a_parse", folder / "lines.txt"


def problem_with(case: Refused) -> str | None:
    """Why it is not as it should be: it was taken, told without a name or a line, or took too much."""
    name = Path(case.path).name
    named = (
        name in case.said or f"{name}." in case.said or "line 1: " in case.said or "half.json" in case.said
    )
    if case.refused and named and "\n" not in case.said and case.grown < MOST:
        return None
    return f"{case.function} {name}: {case.grown / 2**20:.0f} MiB, {case.said[:300]}"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks cannot be reset here")
@pytest.mark.parametrize("kind", [archives, lines, vectors, folders], ids=lambda kind: kind.__name__)
def test_refusing_a_file_takes_less_than_300_mib(kind: Any, tmp_path: Path) -> None:
    found = refuse_alone("test_bombs", list(kind(tmp_path)))
    for one in found:
        print(f"{one.grown / 2**20:6.0f} MiB {one.function} {Path(one.path).name}: {one.said[:90]}")
    assert not list(filter(None, map(problem_with, found)))
