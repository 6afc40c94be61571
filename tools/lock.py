"""`make lock`: writes versions and hashes of everything that `make test` installs to requirements.lock.

Torch is left out because its build differs by platform; the packages it needs are included. Locked versions
are kept unless `--upgrade` is given.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
OF_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions")


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


if __name__ == "__main__":
    write_lock(sys.argv[1:])
