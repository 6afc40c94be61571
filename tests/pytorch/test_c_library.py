"""A C file is compiled once, for its user alone, and where it cannot be nothing fails."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from beamtree.engine.compiled import SOURCE, why_not_compiled
from beamtree.pytorch import c_library

pytestmark = pytest.mark.skipif(
    why_not_compiled() is not None, reason=f"nothing to compile with: {why_not_compiled()}"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return ANSWER; }\n")
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    path = tmp_path / "cache"
    monkeypatch.setenv(c_library.FOLDER, str(path))
    return path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run."""
    commands, run = [], subprocess.run

    def noting(command: list[str], **options: object) -> object:
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", noting)
    return commands


def test_it_is_compiled_at_its_first_use_and_loaded_afterwards(
    source: Path, folder: Path, compiled: list[list[str]]
) -> None:
    assert c_library.load(source, ANSWER="42").answer() == 42
    c_library._load.cache_clear()  # as in another process
    assert c_library.load(source, ANSWER="42").answer() == 42
    assert len(compiled) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.suffix for path in folder.iterdir()] == [".so"]


def test_another_source_definition_or_processor_makes_another_library(
    source: Path, folder: Path, compiled: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert c_library.load(source, ANSWER="1").answer() == 1
    assert c_library.load(source, ANSWER="2").answer() == 2
    source.write_text(source.read_text().replace("ANSWER", "ANSWER + 10"))
    c_library._load.cache_clear()
    assert c_library.load(source, ANSWER="1").answer() == 11
    monkeypatch.setattr(c_library, "_processor", lambda: "another one")
    c_library._load.cache_clear()
    assert c_library.load(source, ANSWER="1").answer() == 11
    assert len(compiled) == len(list(folder.iterdir())) == 4


def test_several_that_compile_at_once_all_get_it(source: Path, folder: Path) -> None:
    def load(_: int) -> int:
        c_library._load.cache_clear()
        return int(c_library.load(source, ANSWER="7").answer())

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(load, range(12))) == {7}
    assert len(list(folder.iterdir())) == 1


def refused(source: Path) -> str:
    assert c_library.load(source, ANSWER="42") is None
    reason = c_library.why_not(source, ANSWER="42")
    assert reason is not None
    return reason


def test_without_a_compiler_there_is_none(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refused(source) == "no C compiler found"


def test_a_compiler_that_fails_leaves_nothing_behind(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", f"{sys.executable} -c 'import sys; sys.exit(\"out of order\")'")
    assert "out of order" in refused(source)
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert "/nowhere/cc" in refused(source)
    assert list(folder.iterdir()) == []


def test_a_compiler_that_makes_rubbish_is_as_none(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = "import sys; open(sys.argv[sys.argv.index('-o') + 1], 'w').write('no library')"
    monkeypatch.setenv("CC", f'{sys.executable} -c "{writes}"')
    assert "invalid ELF header" in refused(source) or "file too short" in refused(source)


def test_where_nothing_can_be_written_there_is_none(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(c_library.FOLDER, str(tmp_path / "file" / "cache"))
    assert "file" in refused(source)


def test_a_folder_in_which_others_may_write_is_refused(source: Path, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    assert "can be written to by others" in refused(source)
    assert list(folder.iterdir()) == []


def test_it_lies_in_the_users_cache(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(c_library.FOLDER, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert c_library.load(source, ANSWER="3").answer() == 3
    assert len(list((tmp_path / "xdg" / "beamtree").iterdir())) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert c_library.load(source, ANSWER="3").answer() == 3
    assert len(list((tmp_path / "home" / ".cache" / "beamtree").iterdir())) == 1


def test_it_can_be_turned_off_and_on_again(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(c_library.SWITCH, "0")
    assert refused(source) == "turned off by BEAMTREE_COMPILE=0"
    assert not folder.exists()
    monkeypatch.delenv(c_library.SWITCH)
    assert c_library.load(source, ANSWER="42").answer() == 42


@pytest.mark.parametrize(
    "surroundings", [{"PATH": "/nowhere"}, {"CC": "false"}, {"BEAMTREE_COMPILE": "0"}], ids=str
)
def test_without_a_library_an_encoder_works_all_the_same(
    surroundings: dict[str, str], tmp_path: Path
) -> None:
    program = """
import torch
from torch import Tensor
from beamtree import BeamTreeEncoder
from beamtree.engine.compiled import why_not_compiled
torch.manual_seed(0)
encoder = BeamTreeEncoder(8, dtype=torch.float64).eval()
x = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)
root = encoder(x)
root.square().sum().backward()
print(why_not_compiled() is None, root.sum().item(), x.grad.abs().sum().item())
"""

    def run(**variables: str) -> tuple[bool, Tensor]:
        environment = {k: v for k, v in os.environ.items() if k not in ("CC", c_library.SWITCH)} | variables
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        is_compiled, *numbers = done.stdout.split()
        return is_compiled == "True", torch.tensor(list(map(float, numbers)), dtype=torch.float64)

    without, plain = run(**surroundings, BEAMTREE_CACHE=str(tmp_path))
    within, in_c = run(BEAMTREE_CACHE=str(tmp_path))
    assert (without, within) == (False, True)
    torch.testing.assert_close(plain, in_c, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("vectors", ["-mavx2 -mno-avx512f", "-mno-avx"])
@pytest.mark.parametrize("real", ["float", "double"])
def test_the_search_compiles_without_a_warning_for_other_processors(
    vectors: str, real: str, tmp_path: Path
) -> None:
    if "avx2" in vectors and not Path("/proc/cpuinfo").read_text().count("avx2"):
        pytest.skip("x86 only")
    command = ["cc", "-O3", "-std=gnu99", *vectors.split(), "-Wall", "-Wextra", "-Werror", f"-DREAL={real}"]
    place = tmp_path / "search.so"
    done = subprocess.run(
        [*command, "-shared", "-fPIC", str(SOURCE), "-o", str(place), "-lm"], capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
