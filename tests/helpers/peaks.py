"""Peak memory of refusing files, in a process of its own, above what that process held when it began."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_CHILD = """
import importlib, json, resource, sys
from pathlib import Path

resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))  # what fails must not take the machine along
paths, name, cases = json.loads(sys.argv[1])
sys.path[:0] = paths
from beamtree.paper.speed.measure import peak_resident
from beamtree.errors import BeamtreeError

module = importlib.import_module(name)
module.prepare()
Path("/proc/self/clear_refs").write_text("5")  # the peak falls to what is held now
before = peak_resident()
for function, path in cases:
    Path("/proc/self/clear_refs").write_text("5")
    refused = False
    try:
        said = str(getattr(module, function)(Path(path)))
    except BeamtreeError as error:
        said, refused = str(error), True
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([function, path, refused, said, peak_resident() - before]), flush=True)
"""


class Refused(NamedTuple):
    function: str
    path: str
    refused: bool  # by a BeamtreeError
    said: str
    grown: int  # bytes


def refuse_alone(module: str, cases: Sequence[tuple[str, Path]]) -> list[Refused]:
    """What became of calling functions of a test module with paths, after its `prepare`."""
    here, there = Path(__file__).parent, Path(str(sys.modules[module].__file__)).parent
    order = [
        [str(here), str(there), str(here.parents[1])],
        module,
        [(function, str(path)) for function, path in cases],
    ]
    command = [sys.executable, "-c", _CHILD, json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [Refused(*json.loads(line)) for line in done.stdout.splitlines()]
    assert len(found) == len(cases), done.stderr[-3000:]
    return found
