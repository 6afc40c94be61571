"""What a launcher says through the environment, and two real processes that wait for each other."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from beamtree.errors import BeamtreeError
from beamtree.processes.launched import Processes


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_there_is_one_process_that_never_waits() -> None:
    processes = Processes.from_environment()
    assert (processes.rank, processes.count, processes.first) == (0, 1, True)
    processes.wait()
    processes.leave()


def test_the_launchers_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "localhost",
    }.items():
        monkeypatch.setenv(name, value)
    processes = Processes.from_environment()
    assert (processes.rank, processes.count, processes.local_rank, processes.first) == (3, 8, 1, False)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "x"}, "RANK must be a whole number, got 'x'"),
        ({"WORLD_SIZE": "-2"}, "WORLD_SIZE must be a whole number, got '-2'"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "RANK is 2, but WORLD_SIZE is 2"),
        ({"WORLD_SIZE": "0"}, "RANK is 0, but WORLD_SIZE is 0"),
        ({"WORLD_SIZE": "2"}, "MASTER_ADDR is not: start processes with torchrun or accelerate launch"),
    ],
)
def test_nonsense_in_the_environment_is_explained(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BeamtreeError, match=message):
        Processes.from_environment()


def test_a_single_member_group_opens_and_closes_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    calls: list[str] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: "init" in calls)
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **options: calls.append("init"))
    monkeypatch.setattr(dist, "barrier", lambda: calls.append("barrier"))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroy"))
    processes = Processes(1, 2)
    processes.leave()
    processes.wait()
    processes.wait()
    processes.leave()
    assert calls == ["init", "barrier", "barrier", "destroy"]


SCRIPT = """
import sys
from pathlib import Path
from beamtree.processes.launched import Processes
from beamtree.cli.streaming import LineJob, survey

folder = Path(sys.argv[1])
processes = Processes.from_environment()
job = LineJob(survey(folder / "in.txt"), folder / "out.txt", {}, processes, chunk_lines=3)
job.run(lambda first, lines: [f"{line}{line}" for line in lines])
processes.leave()
assert (folder / "out.txt").exists()
"""


def test_two_real_processes_share_a_file_and_both_see_it_whole(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{i}\n" for i in range(20)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launcher = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    running = [
        subprocess.Popen(command, env={**os.environ, **launcher, "RANK": str(rank)}, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    assert (tmp_path / "out.txt").read_text() == "".join(f"{i}{i}\n" for i in range(20))


def test_every_attempt_of_torchrun_has_names_of_its_own_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = dist.TCPStore("127.0.0.1", port, is_master=True)  # the supervisor's, which outlives its workers
    for name, value in {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():
        monkeypatch.setenv(name, value)
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        Processes(0, 1).connect("gloo")
        dist.destroy_process_group()
    keys = server.list_keys()
    assert any(key.startswith("attempt0/") for key in keys)
    assert any(key.startswith("attempt1/") for key in keys)
