"""The wheel, installed outside the checkout, is the whole package: command line and recipes included."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def call(*command: str | Path, place: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=place,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_installed_wheel_trains_evaluates_and_parses(tmp_path: Path) -> None:
    call(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, place=tmp_path
    )
    (wheel,) = tmp_path.glob("beamtree-*.whl")
    place = tmp_path / "empty"
    venv.create(place, with_pip=False)
    # The dependencies are those of this environment; beamtree itself is only in the new one.
    packages = sysconfig.get_paths()["purelib"]
    site = next(place.glob("lib/python*/site-packages"))
    call(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--quiet",
        "--target",
        site,
        wheel,
        place=tmp_path,
    )
    python = place / "bin" / "python"

    def run(*words: str) -> str:
        return call(python, "-m", *words, place=tmp_path, PYTHONPATH=f"{site}:{packages}")

    where = call(
        python,
        "-c",
        "import beamtree; print(beamtree.__file__)",
        place=tmp_path,
        PYTHONPATH=f"{site}:{packages}",
    )
    assert str(site) in where
    assert (site / "bin" / "beamtree").exists()
    assert (site / "beamtree" / "explorer" / "page" / "index.html").exists()
    assert (site / "beamtree" / "paper" / "published.toml").exists()
    assert (site / "beamtree" / "data" / "corpora.toml").exists()
    assert (site / "beamtree" / "engine" / "compiled.c").exists()
    assert "beamtree 0." in run("beamtree.cli", "--version")
    shorten = ["--set", "task.sampled.train=8", "--set", "task.sampled.dev=4", "--max-steps", "1"]
    run("beamtree.cli", "train", "listops-minute", "--out", "run", *shorten)
    assert "MAX" in run("beamtree.cli", "parse", "run", "[MAX 2 9 [MIN 4 7 ] 0 ]")
