"""Two processes that find each other by a port: what torchrun does, without its supervisor."""

import os
import socket
import subprocess
import sys


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_two(*words: object, status: int = 0) -> tuple[list[str], str]:
    """`python WORDS…` twice, side by side; what each wrote to stdout, and what both wrote to stderr."""
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    group |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, words)],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        written = [process.communicate(timeout=150) for process in processes]
        said = "".join(errors for _, errors in written)
        assert [process.returncode for process in processes] == [status, status], said
        return [output for output, _ in written], said
    finally:
        for process in processes:
            process.kill()
