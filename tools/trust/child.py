"""A beamtree command in a process of its own that may be killed, forked so that torch is imported once."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class Child:
    """`beamtree ARGUMENTS` under way; `prepare` runs in the new process first."""

    def __init__(
        self, arguments: Sequence[str], log: Path, prepare: Callable[[], None] = lambda: None
    ) -> None:
        sys.stdout.flush()
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            _run(arguments, log, prepare)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = 120.0) -> int:
        """The exit status, minus the signal's number if one ended it."""
        for _ in range(int(timeout / 0.002)):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        self.kill()
        os.waitpid(self.pid, 0)
        raise TimeoutError(f"still running after {timeout:.0f} s: {self.log}")

    def said(self) -> str:
        return self.log.read_text(errors="replace")


def _run(arguments: Sequence[str], log: Path, prepare: Callable[[], None]) -> None:
    status = 70
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        prepare()
        from beamtree.cli import main

        sys.argv = ["beamtree", *arguments]
        main()
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def import_everything() -> None:
    """Once, before the first fork, so that no child pays for it."""
    import torch
    import torch.utils.tensorboard
    from accelerate import Accelerator

    import beamtree.cli
    import beamtree.paper.report.pages
    import beamtree.training.evaluate
    import beamtree.training.fit  # noqa: F401

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)  # imports torch's compiler
    Accelerator(cpu=True)
