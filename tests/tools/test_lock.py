"""The lock file: every package that pyproject.toml asks for, by version and hash, and not torch."""

import re

from tools.lock import LOCK, OF_TORCH, direct_requirements, locked_versions, normal


def test_lock_and_pyproject_agree() -> None:
    missing = direct_requirements() - locked_versions().keys()
    assert not missing, f"run `make lock`: requirements.lock lacks {', '.join(sorted(missing))}"
    assert "torch" not in locked_versions()
    assert set(OF_TORCH) <= locked_versions().keys()


def test_every_locked_package_has_a_hash() -> None:
    entries = re.split(r"\n(?=[A-Za-z0-9])", LOCK.read_text().split("make lock\n")[1])
    assert len(entries) == len(re.findall(r"^[A-Za-z0-9].*==", LOCK.read_text(), re.MULTILINE)) > 50
    assert all("--hash=sha256:" in entry for entry in entries)


def test_names_are_compared_as_the_index_does() -> None:
    assert normal("Huggingface_Hub") == "huggingface-hub"


def test_the_oldest_torch_that_is_admitted_is_the_one_that_is_tested() -> None:
    admitted = re.search(r'"torch>=([\d.]+)"', (LOCK.parent / "pyproject.toml").read_text())
    tested = re.search(r"^OLDEST := torch==([\d.]+)$", (LOCK.parent / "Makefile").read_text(), re.MULTILINE)
    assert admitted is not None
    assert tested is not None
    assert tested[1] == f"{admitted[1]}.0"
