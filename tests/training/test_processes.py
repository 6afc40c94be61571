"""What a launcher says through the environment; processes that wait for each other and fail together."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from command_line import attempt
from two_processes import free_port, run_two

from beamtree.errors import BeamtreeError, SharedError
from beamtree.training.processes import Processes, failing_together


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


SHARED_FILE = """
import sys
from pathlib import Path
from beamtree.cli.line_job import LineJob
from beamtree.data.unlabelled import Unlabelled
from beamtree.training.processes import Processes

folder = Path(sys.argv[1])
processes = Processes.from_environment()
job = LineJob(Unlabelled(folder / "in.txt"), folder / "out.txt", {}, processes, chunk_lines=3)
job.run(lambda rows: [row.line * 2 for row in rows])
processes.leave()
assert (folder / "out.txt").exists()
"""


def test_two_real_processes_share_a_file_and_both_see_it_whole(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{i}\n" for i in range(20)))
    run_two("-c", SHARED_FILE, tmp_path)
    assert (tmp_path / "out.txt").read_text() == "".join(f"{i}{i}\n" for i in range(20))


def test_every_attempt_of_torchrun_has_names_of_its_own_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    server = dist.TCPStore("127.0.0.1", port, is_master=True)  # the supervisor's, which outlives its workers
    for name, value in {
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }.items():
        monkeypatch.setenv(name, value)
    for restarts in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", restarts)
        Processes(0, 1).connect("gloo")
        dist.destroy_process_group()
    keys = server.list_keys()
    assert any(key.startswith("attempt0/") for key in keys)
    assert any(key.startswith("attempt1/") for key in keys)


def test_a_process_alone_raises_what_it_met() -> None:
    with failing_together():
        pass
    with pytest.raises(BeamtreeError, match="mine") as caught, failing_together():
        raise BeamtreeError("mine")
    assert type(caught.value) is BeamtreeError


Other = dict[str, str | None]


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> Other:
    """As if another process ran beside this one, failing with `other`."""
    other: Other = {"other": None}

    def all_gather_object(everyone: list[str | None], mine: str | None) -> None:
        everyone[:] = other["other"], mine

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather_object", all_gather_object)
    return other


def test_another_process_error_is_raised_here_and_the_first_of_two_by_both(
    two_processes: Other,
) -> None:
    with failing_together():
        pass
    two_processes["other"] = "größer als hier"
    with pytest.raises(SharedError, match=r"^größer als hier$"), failing_together():
        pass
    with pytest.raises(SharedError, match=r"^größer als hier$"), failing_together():
        raise BeamtreeError("mine")
    two_processes["other"] = None
    with pytest.raises(SharedError, match=r"^mine$"), failing_together():
        raise BeamtreeError("mine")
    with pytest.raises(SharedError, match=r"^a name of \\udcff$"), failing_together():
        raise BeamtreeError("a name of \udcff")  # as Python reads a path that is not UTF-8


def test_what_all_have_raised_already_is_not_shared_again(two_processes: Other) -> None:
    with pytest.raises(SharedError, match="once"), failing_together(), failing_together():
        raise SharedError("once")


@pytest.mark.parametrize(("rank", "said"), [("0", "beamtree: there is no file"), ("1", "")])
def test_a_shared_error_is_said_by_the_first_process_alone(
    rank: str, said: str, two_processes: Other, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import beamtree.training.fit as fit_module

    class Place:
        device, is_main_process, num_processes = torch.device("cpu"), rank == "0", 2

    monkeypatch.setattr(fit_module, "create_accelerator", Place)
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    left: list[str] = []
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: left.append(rank))
    result = attempt("train", tmp_path / "nowhere.toml")
    assert result.exit_code == 2
    assert result.stderr.startswith(said) if said else not result.stderr
    assert left == [rank]


SHARED_ERROR = """
import torch.distributed as dist
from beamtree.errors import BeamtreeError, SharedError
from beamtree.training.processes import failing_together
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
    heard, _ = run_two("-c", SHARED_ERROR)
    assert heard == ["only rank 1 knows this\n"] * 2
