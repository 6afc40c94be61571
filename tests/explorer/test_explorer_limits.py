"""Computations in threads: limited, stoppable, and never a worker lost."""

import asyncio
import random
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
import torch
from explored import small_model

from beamtree.errors import BeamtreeError
from beamtree.explorer.api import Problem
from beamtree.explorer.limits import ClientLeftError, Computation, Limits, Workshop
from beamtree.explorer.view import make_view


async def stays() -> bool:
    return False


def threads() -> int:
    return sum(thread.name == "beamtree-explorer" for thread in threading.enumerate())


def wait_until_all_ended() -> None:
    begun = time.monotonic()
    while threads():
        assert time.monotonic() - begun < 60, "a computation goes on"
        time.sleep(0.01)


def endless() -> bytes:
    ended = torch.zeros(1)
    while not ended.item():
        ended = torch.ones(32, 32).mm(torch.ones(32, 32)).sum() * 0
    return b""


def test_a_result_and_an_exception_come_back() -> None:
    async def both() -> None:
        workshop = Workshop(Limits(workers=1))
        assert await workshop.do(lambda: b"42", stays) == b"42"
        with pytest.raises(ZeroDivisionError):
            await workshop.do(lambda: b"%d" % (1 // 0), stays)
        assert await workshop.do(lambda: b"still works", stays) == b"still works"

    asyncio.run(both())


def test_a_computation_for_a_client_that_left_is_stopped() -> None:
    async def leaves() -> bool:
        return time.monotonic() - begun > 0.2

    async def left() -> None:
        with pytest.raises(ClientLeftError):
            await Workshop(Limits(seconds=60)).do(endless, leaves)

    begun = time.monotonic()
    asyncio.run(left())
    wait_until_all_ended()


@pytest.mark.parametrize("encoder", ["ebt-grc", "crvnn-nohalt", "om", "egt-grc"])
def test_every_kind_of_encoder_can_be_stopped(encoder: str) -> None:
    model = small_model(encoder)
    text = " ".join(["[MAX", *"12345678" * 200, "]"])

    def look() -> bytes:
        while True:
            make_view(model, [text], name="it")

    async def too_slow() -> None:
        with pytest.raises(Problem, match="Stopped at the time limit"):
            await Workshop(Limits(seconds=0.3)).do(look, stays)

    asyncio.run(too_slow())
    wait_until_all_ended()


def test_a_computation_that_did_not_hear_is_told_again_and_gives_its_worker_back() -> None:
    def deaf_at_first() -> bytes:
        with suppress(BaseException):  # as Python does with what a finalizer raises
            endless()
        return endless()

    async def work() -> None:
        workshop = Workshop(Limits(workers=1, seconds=0.2))
        with pytest.raises(Problem, match="Stopped at the time limit"):
            await workshop.do(deaf_at_first, stays)
        workshop.limits = Limits(workers=1, seconds=10)
        assert await workshop.do(lambda: b"next", stays) == b"next"

    asyncio.run(work())
    wait_until_all_ended()


def test_who_waits_too_long_for_a_worker_is_told_that_it_is_busy() -> None:
    async def wait() -> None:
        workshop = Workshop(Limits(workers=1, seconds=0.3))
        first = asyncio.create_task(workshop.do(endless, stays))
        await asyncio.sleep(0.05)
        workshop.limits = Limits(workers=1, seconds=0.05)
        with pytest.raises(Problem, match="busy"):
            await workshop.do(lambda: b"", stays)
        with pytest.raises(Problem, match="Stopped at the time limit"):
            await first

    asyncio.run(wait())
    wait_until_all_ended()


def test_a_client_that_leaves_while_it_waits_is_not_computed_for_and_gives_up_its_place() -> None:
    computed: list[str] = []
    released = threading.Event()

    def compute(name: str) -> bytes:
        computed.append(name)
        released.wait(60)
        return name.encode()

    async def leaves() -> bool:
        return gone

    gone = False

    async def queue() -> None:
        nonlocal gone
        workshop = Workshop(Limits(workers=1, waiting=2, seconds=60))
        first = asyncio.create_task(workshop.do(partial(compute, "first"), stays))
        leaving = asyncio.create_task(workshop.do(partial(compute, "leaving"), leaves))
        last = asyncio.create_task(workshop.do(partial(compute, "last"), stays))
        await asyncio.sleep(0.3)
        with pytest.raises(Problem, match="busy"):
            await workshop.do(lambda: b"", stays)
        gone = True
        with pytest.raises(ClientLeftError):
            await asyncio.wait_for(leaving, 10)
        newcomer = asyncio.create_task(workshop.do(partial(compute, "newcomer"), stays))
        await asyncio.sleep(0.1)
        released.set()
        assert await asyncio.gather(first, last, newcomer) == [b"first", b"last", b"newcomer"]

    asyncio.run(queue())
    assert computed == ["first", "last", "newcomer"]


def test_a_client_that_left_by_the_time_its_turn_comes_is_not_computed_for() -> None:
    computed: list[int] = []

    async def left() -> bool:
        return True

    async def turn() -> None:
        with pytest.raises(ClientLeftError):
            await Workshop(Limits(workers=1)).do(lambda: b"%d" % len(computed.append(1) or b""), left)

    asyncio.run(turn())
    assert not computed


def test_a_computation_stopped_before_its_thread_gets_to_it_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[str] = []
    stopped, run = threading.Event(), threading.Thread.run

    def run_late(thread: threading.Thread) -> None:
        stopped.wait(60)
        run(thread)

    monkeypatch.setattr(threading.Thread, "run", run_late)
    computation = Computation(
        lambda: b"%d" % len(ends.append("computed") or b""), lambda: ends.append("done")
    )
    computation.start()
    computation.stop()
    stopped.set()
    computation.join(10)
    assert ends == ["done"]


def test_a_thread_that_cannot_be_started_costs_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> None:
        workshop = Workshop(Limits(workers=1, waiting=0))
        with monkeypatch.context() as patch:
            patch.setattr(Computation, "start", lambda _: threading.Lock().release())  # a RuntimeError
            with pytest.raises(RuntimeError):
                await workshop.do(lambda: b"", stays)
        assert await workshop.do(lambda: b"free", stays) == b"free"

    asyncio.run(start())


def test_no_worker_is_lost_whenever_a_computation_is_stopped() -> None:
    draw = random.Random(0)

    async def hasty() -> None:
        workshop = Workshop(Limits(workers=2, waiting=100))
        for _ in range(60):
            workshop.limits = Limits(workers=2, seconds=draw.choice([0.001, 0.003, 0.01]))
            spins = draw.randrange(1, 4000)

            def spin(spins: int = spins) -> bytes:
                return b"%d" % sum(i * i for i in range(spins * 10))

            calls = [workshop.do(spin, stays) for _ in range(2)]
            await asyncio.gather(*calls, return_exceptions=True)
        workshop.limits = Limits(workers=2, seconds=10)
        calls = [workshop.do(lambda: b"free", stays) for _ in range(4)]
        assert await asyncio.gather(*calls) == [b"free"] * 4

    asyncio.run(hasty())
    wait_until_all_ended()


def test_closing_stops_what_runs() -> None:
    async def close() -> None:
        workshop = Workshop(Limits(workers=1, seconds=60))
        running = asyncio.create_task(workshop.do(endless, stays))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(workshop.close)
        with pytest.raises(Problem, match="Stopped at the time limit"):
            await running

    asyncio.run(close())
    wait_until_all_ended()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"workers": 0},
        {"waiting": -1},
        {"seconds": 0.0},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"max_request_bytes": 0},
    ],
)
def test_a_limit_that_lets_nothing_through_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BeamtreeError, match=f"the limit {next(iter(wrong))} must be at least"):
        Limits(**wrong)  # type: ignore[arg-type]
