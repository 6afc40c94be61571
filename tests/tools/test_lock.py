"""The lock file: every package that pyproject.toml asks for, by version and hash, and not torch."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.lock import LOCK, OF_TORCH, ROOT


def direct_requirements() -> set[str]:
    """What pyproject.toml asks for in `dev` and in what that includes, without torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, extras = set(project["dependencies"]), ["dev"]
    for extra in extras:
        for asked in project["optional-dependencies"][extra]:
            if Requirement(asked).name == "beamtree":
                extras += Requirement(asked).extras
            else:
                found.add(asked)
    return {canonicalize_name(Requirement(asked).name) for asked in found} - {"torch"}


def test_lock_and_pyproject_agree() -> None:
    names = re.findall(r"^([A-Za-z0-9._-]+).*==", LOCK.read_text(), re.MULTILINE)
    locked = set(map(canonicalize_name, names))
    missing = direct_requirements() - locked
    assert not missing, f"run `make lock`: requirements.lock lacks {', '.join(sorted(missing))}"
    assert "torch" not in locked
    assert set(OF_TORCH) <= locked


def test_every_locked_package_has_a_hash() -> None:
    entries = re.split(r"\n(?=[A-Za-z0-9])", LOCK.read_text().split("make lock\n")[1])
    assert len(entries) == len(re.findall(r"^[A-Za-z0-9].*==", LOCK.read_text(), re.MULTILINE)) > 50
    assert all("--hash=sha256:" in entry for entry in entries)


def test_the_oldest_torch_that_is_admitted_is_the_one_that_is_tested() -> None:
    admitted = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    tested = re.search(r"^OLDEST := torch==([\d.]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert admitted is not None
    assert tested is not None
    assert tested[1] == f"{admitted[1]}.0"
