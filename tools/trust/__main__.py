"""`python -m tools.trust CHECK` runs a check in full, or with `--short` as continuous integration runs it."""

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

CHECKS = {
    "crashes": "SIGKILL at 50 random moments and at every write; full and read-only disks (10 minutes)",
    "ranks": "one of two processes killed and restarted, 6 times (3 minutes)",
    "files": "3,000 fuzzed model folders, checkpoints, recipes and run folders (2 minutes)",
    "inputs": "20,800 fuzzed expressions, files, trees and tensors (3 minutes)",
    "numbers": "float32 against float64 on 1,200 batches, extreme sizes (6 minutes)",
    "crowd": "50 clients at the explorer, with valid and invalid requests (2 minutes)",
    "endurance": "20,000 training steps: memory, file handles and threads (8 minutes)",
}


def main() -> int:
    lines = "\n".join(f"  {name:10} {what}" for name, what in CHECKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tools.trust", epilog=lines, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checks", nargs="+", choices=[*CHECKS, "all"], metavar="CHECK")
    parser.add_argument("--short", action="store_true", help="run about a twentieth of it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/beamtree-trust"), help="for scratch files")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    options.folder.mkdir(parents=True, exist_ok=True)
    failures = 0
    for name in CHECKS if "all" in options.checks else options.checks:
        print(f"== {name}: {CHECKS[name]}", flush=True)
        began = time.monotonic()
        check = importlib.import_module(f"tools.trust.{name}")
        tallies = check.run(
            options.folder / name, seed=options.seed, **(check.SHORT if options.short else {})
        )
        failed = sum(len(tally.failures) for tally in tallies)
        print(f"== {name}: {failed} failures in {time.monotonic() - began:.0f} s", flush=True)
        failures += failed
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
