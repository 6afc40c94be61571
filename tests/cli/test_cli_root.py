"""The command line as a whole: mistyped words are answered by what was probably meant."""

import os
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from command_line import attempt, refusal
from typer.testing import CliRunner

import beamtree
from beamtree.cli import COMMANDS, app
from beamtree.cli.conventions import say_torch_loads
from beamtree.errors import nearest

PACKAGE = Path(beamtree.__file__).parent


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pars"], "there is no command 'pars'; did you mean 'parse'?"),
        (["xyz"], f"there is no command 'xyz'; there are {', '.join(COMMANDS)}"),
        (["train", "mine.toml"], "there is no file 'mine.toml'"),
        (
            ["export", "listops-ebt-grc", "--onnx", "nowhere/x.onnx"],
            "there is no folder nowhere to write x.onnx to",
        ),
        (
            ["export", "listops-ebt-grc", "--onnx", "x", "--exported-program", "x"],
            "--onnx and --exported-program both name x",
        ),
        (
            ["export", "listops-ebt-grc", "--onnx", "."],
            ". is a folder: name a file to write",
        ),
        (
            ["parse", "listops-ebt-grc", "5", "--out", "."],
            ". is a folder: name a file to write",
        ),
    ],
)
def test_a_mistake_is_named_in_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(*words) == said


def test_help_names_every_command_and_no_arguments_mean_help() -> None:
    for done in (attempt("--help"), attempt()):
        assert all(name in done.output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    done = attempt(name, "--help")
    assert done.exit_code == 0
    assert f"Usage: beamtree {name}" in done.output.replace("root", "beamtree")


@pytest.mark.parametrize("module", ["beamtree", "beamtree.cli"])
def test_python_m_is_the_command_line(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["beamtree", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"beamtree {beamtree.__version__}\n"


def test_a_single_known_name_is_not_spoken_of_as_many() -> None:
    assert nearest("x", ("listops-ebt-grc",)) == "; there is listops-ebt-grc"
    assert nearest("x", ("one", "two")) == "; there are one, two"


def test_a_terminal_that_lacks_a_character_gets_a_question_mark_and_no_trace() -> None:
    done = CliRunner(charset="ascii").invoke(app, ["parse", "listops-ebt-grc", "[MAX 2 9 ]"])
    assert done.exit_code == 0, repr(done.exception)
    assert "? 9   probability" in done.stdout


def test_too_little_memory_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from beamtree.classifier import model_folder

    def fail(*arguments: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(model_folder, "load_model", fail)
    assert refusal("parse", "listops-ebt-grc", "5") == "there is not enough memory for this"


@pytest.mark.parametrize(
    "words",
    [
        ["train", "own", "--data", "nowhere.tsv"],
        ["eval", "nowhere"],
        ["predict", "nowhere", "nowhere.csv"],
        ["compare", "filters", "--list"],
        ["parse", "nowhere", "--file", "nowhere.txt"],
        ["bench", "--models", "nothing"],
        ["report", "nowhere"],
        ["serve", "nowhere", "--port", "0"],
    ],
)
def test_a_long_command_speaks_before_it_imports_torch(words: list[str], tmp_path: Path) -> None:
    # A torch that ends the process as soon as it is imported: what is said by then was said before.
    (tmp_path / "torch.py").write_text("raise SystemExit(7)")
    done = subprocess.run(
        [sys.executable, "-m", "beamtree", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "loading PyTorch …\n")


def test_of_several_processes_the_first_speaks_and_none_where_torch_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say_torch_loads()
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("RANK", "1")
    say_torch_loads()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    say_torch_loads()
    assert capsys.readouterr().err == "loading PyTorch …\n"


@pytest.mark.parametrize(("chosen", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_do_not_spin_unless_the_user_wants_it(chosen: str | None, policy: str) -> None:
    """PyTorch reads the policy when it is imported, so it must be set before."""
    program = """
        import builtins, os, sys
        from beamtree.cli import main

        plainly = builtins.__import__

        def watched(name, *rest):
            if name == "torch" and "torch" not in sys.modules:
                print(os.environ["OMP_WAIT_POLICY"])
            return plainly(name, *rest)

        builtins.__import__ = watched
        sys.argv = ["beamtree", "eval", "no-such-model"]
        main()
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment | ({} if chosen is None else {"OMP_WAIT_POLICY": chosen}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == [policy], ran.stderr
