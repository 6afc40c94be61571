"""What README promises can be typed: its Python runs, and so does every command, with few steps."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from beamtree.data.listops import sample_expressions

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in FENCED
    for line in block.splitlines()
    if not language and line.startswith("beamtree ")
]
# What makes a command short; each is README's, with these words behind it.
SHORT = {
    "data listops": "--split 5-args",
    "train listops": "--set training.batch_size=8 --set training.max_epochs=1",
    "train own": "--max-steps 2 --set model.d_model=8",
    "train listops-quick": "--max-steps 2 --set task.sampled.train=8 --set task.sampled.dev=4",
    "eval": "",
    "predict": "",
    "parse": "",
    "report": "--skip",
    "serve": "--help",  # tests/explorer/test_explorer_serve.py starts it
    "export": "--help",  # tests/package/test_docs.py runs it
    "bench": "--lengths 6 --batch 1 --d-model 8 --repeat 1 --no-memory",
}


def test_the_python_of_readme_runs() -> None:
    blocks = [block for language, block in FENCED if language == "python"]
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)


def beamtree(arguments: list[str], place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "beamtree.cli", *arguments], cwd=place, capture_output=True, text=True
    )


@pytest.mark.slow
def test_every_command_of_readme_runs_as_written(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "listops"
    folder.mkdir(parents=True)
    lines = [
        f"{example.label}\t{' '.join(example.sentences[0])}\n"
        for example in sample_expressions(1016, seed=0, min_length=4, max_length=12)
    ]
    (folder / "train_d20s.tsv").write_text("".join(lines), encoding="utf-8")
    (folder / "test_d20s.tsv").write_text("".join(lines[:8]), encoding="utf-8")
    reviews = "pos\tthe plot is thin but I laughed\nneg\ttwo hours I want back\n" * 10
    (tmp_path / "reviews.tsv").write_text(f"label\ttext\n{reviews}", encoding="utf-8")
    (tmp_path / "new.csv").write_text("id,text\n17,I laughed\n", encoding="utf-8")
    assert {command.split()[1] for command in COMMANDS} >= {"data", "train", "eval", "parse", "bench"}
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        short = SHORT.get(" ".join(words[:2]), SHORT.get(words[0], ""))
        done = beamtree([*words, *shlex.split(short)], tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_make_has_the_two_commands_that_readme_names() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("run", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
