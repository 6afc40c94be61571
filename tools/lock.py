"""`make lock`: versions and hashes of everything that `make test` installs, into requirements.lock.

Torch is left out, because its build differs by platform; what torch itself needs is in. Versions that are
locked already stay, unless `--upgrade` is given.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
OF_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", re.MULTILINE)


def write_lock(more: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        excluded, of_torch = Path(folder, "excluded.txt"), Path(folder, "torch-needs.txt")
        excluded.write_text("torch\n")
        of_torch.write_text("\n".join(OF_TORCH))
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--extra", "dev"]
        command += ["--no-annotate", "--custom-compile-command", "make lock", "--excludes", str(excluded)]
        subprocess.run(
            [*command, "-o", str(LOCK), *more, "pyproject.toml", str(of_torch)], check=True, cwd=ROOT
        )


def locked_versions() -> dict[str, str]:
    """Package -> version, by normalised name."""
    return {normal(name): version for name, version in _PIN.findall(LOCK.read_text())}


def direct_requirements() -> set[str]:
    """What pyproject.toml asks for in `dev` and in what that includes, without torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras, wanted, found = (
        project["optional-dependencies"],
        ["dev"],
        set(map(_name, project["dependencies"])),
    )
    for extra in wanted:
        for requirement in extras[extra]:
            if included := re.match(r"beamtree\[(.*)\]", requirement):
                wanted += included[1].split(",")
            else:
                found.add(_name(requirement))
    return found - {"torch"}


def _name(requirement: str) -> str:
    return normal(re.match(r"[A-Za-z0-9._-]+", requirement)[0])  # type: ignore[index]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    write_lock(sys.argv[1:])
