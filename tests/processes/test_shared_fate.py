"""Processes fail together: what one cannot do is raised by all, and said once."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

from beamtree.cli import app
from beamtree.errors import BeamtreeError, SharedError
from beamtree.processes.launched import failing_together


def test_a_process_alone_raises_what_it_met() -> None:
    with failing_together():
        pass
    with pytest.raises(BeamtreeError, match="mine") as caught, failing_together():
        raise BeamtreeError("mine")
    assert type(caught.value) is BeamtreeError


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """As if another process ran beside this one, failing with `other`."""
    other = {"other": ""}

    def all_reduce(sums: torch.Tensor) -> None:
        sums += bool(other["other"])

    def all_gather(everyone: list[torch.Tensor], mine: torch.Tensor) -> None:
        everyone[1].copy_(mine)
        text = torch.frombuffer(bytearray(other["other"].encode() + b"\0"), dtype=torch.uint8)
        everyone[0][: len(text)] = text

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "all_gather", all_gather)
    return other


def test_nothing_is_raised_where_all_went_well(two_processes: dict[str, str]) -> None:
    with failing_together():
        pass


def test_another_process_error_is_raised_here_and_the_first_of_two_by_both(
    two_processes: dict[str, str],
) -> None:
    two_processes["other"] = "größer als hier"
    with pytest.raises(SharedError, match=r"^größer als hier$"), failing_together():
        pass
    with pytest.raises(SharedError, match=r"^größer als hier$"), failing_together():
        raise BeamtreeError("mine")
    two_processes["other"] = ""
    with pytest.raises(SharedError, match=r"^mine$"), failing_together():
        raise BeamtreeError("mine")
    with pytest.raises(SharedError, match=r"^a name of \\udcff$"), failing_together():
        raise BeamtreeError("a name of \udcff")  # as Python reads a path that is not UTF-8


def test_what_all_have_raised_already_is_not_shared_again(two_processes: dict[str, str]) -> None:
    with pytest.raises(SharedError, match="once"), failing_together(), failing_together():
        raise SharedError("once")


@pytest.mark.parametrize(("rank", "said"), [("0", "beamtree: there is no file"), ("1", "")])
def test_a_shared_error_is_said_by_the_first_process_alone(
    rank: str, said: str, two_processes: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import beamtree.training.fit as fit_module

    class Place:
        device, is_main_process, num_processes = torch.device("cpu"), rank == "0", 2

    monkeypatch.setattr(fit_module, "create_accelerator", Place)
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    left: list[str] = []
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: left.append(rank))
    result = CliRunner().invoke(app, ["train", str(tmp_path / "nowhere.toml")])
    assert result.exit_code == 2
    assert result.stderr.startswith(said) if said else not result.stderr
    assert left == [rank]


SCRIPT = """
import torch.distributed as dist
from beamtree.errors import BeamtreeError, SharedError
from beamtree.processes.launched import failing_together
dist.init_process_group("gloo")
with failing_together():
    pass
try:
    with failing_together():
        if dist.get_rank() == 1:
            raise BeamtreeError("only rank 1 knows this")
except SharedError as error:
    print(error)
dist.destroy_process_group()
"""


def test_two_real_processes_hear_of_each_others_errors() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **launcher, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == [
        "only rank 1 knows this"
    ] * 2
