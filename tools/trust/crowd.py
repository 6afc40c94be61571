"""Load on the explorer: times single requests, then sends valid and invalid ones from many clients at once.

Every answer must have a status that is documented for its request, no request may fail without an answer, and
the server's memory must not grow.
"""

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx

from beamtree.data.listops import sample_expressions
from tools.trust import Tally
from tools.trust.endurance import look

SHORT = {"clients": 10, "seconds": 4.0, "requests": 2, "lengths": [100], "growth": 100}


class Wish(NamedTuple):
    """A request and the statuses that are documented for it."""

    statuses: set[int]
    path: str
    body: str | None = None  # to be posted


def all_wishes() -> dict[str, Wish]:
    def view(statuses: set[int], text: str) -> Wish:
        return Wish(statuses, "/api/view", json.dumps({"texts": [text]}))

    return {
        "9 tokens": view({200, 429}, expression(9)),
        "100 tokens": view({200, 429}, expression(100)),
        "300 tokens": view({200, 429, 503}, expression(300)),
        "a wrong token": view({422, 429}, "[MAX 2 x ]"),
        "too many tokens": view({413, 429}, "1 " * 2000),
        "too many bytes": view({413}, "1 " * 50_000),
        "not JSON": Wish({422}, "/api/view", "{"),
        "the models": Wish({200}, "/api/models"),
        "the page": Wish({200}, "/"),
        "nothing there": Wish({404}, "/static/../../etc/passwd"),
    }


def run(
    folder: Path,
    *,
    clients: int = 50,
    seconds: float = 60.0,
    requests: int = 20,
    lengths: Sequence[int] = (100, 1000),
    growth: float = 20,
    seed: int = 0,
) -> list[Tally]:
    """Send `requests` of each length, then let `clients` send for some seconds; `growth` is in MiB."""
    with running_explorer() as (pid, address):
        for tokens in lengths:
            taken = time_requests(address, tokens, requests)
            print(f"{tokens} tokens, {requests} times: {median(taken):.3f} s, at most {max(taken):.3f} s")
        wishes = all_wishes()
        counts, memory = asyncio.run(crowd(address, pid, wishes, clients, seconds, seed))
    answers = Tally(f"requests of {clients} clients")
    for (what, status), count in sorted(counts.items(), key=str):
        print(f"{what}: {count} answered with {status}")
        for _ in range(count):
            answers.note(status in wishes[what].statuses, f"{what}: {status}")
    more = grown(memory)
    flat = Tally(
        f"memory, {memory[0]:.0f} MiB, {memory[-1]:.0f} at the end, {more:.1f} more in the last third"
    )
    flat.note(more <= growth, f"grew by {more:.1f} MiB")
    print(answers, flat, sep="\n", flush=True)
    return [answers, flat]


@contextmanager
def running_explorer() -> Iterator[tuple[int, str]]:
    """Start an explorer; gives its process id and its address."""
    command = [sys.executable, "-m", "beamtree.cli", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r"http://\S+", process.stdout.readline() if process.stdout else "")
            if found is None:
                raise RuntimeError("the explorer did not start")
            yield process.pid, found.group()
        finally:
            process.terminate()


def expression(tokens: int) -> str:
    (drawn,) = sample_expressions(1, seed=tokens, min_length=tokens, max_length=tokens)
    return " ".join(drawn.sentences[0])


def time_requests(address: str, tokens: int, count: int) -> list[float]:
    """Seconds of each request, including the server's first."""
    body = {"texts": [expression(tokens)]}
    seconds = []
    with httpx.Client(base_url=address, timeout=60) as client:
        for _ in range(count):
            begun = time.perf_counter()
            client.post("/api/view", json=body).raise_for_status()
            seconds.append(time.perf_counter() - begun)
    return seconds


async def crowd(
    address: str, pid: int, wishes: dict[str, Wish], clients: int, seconds: float, seed: int
) -> tuple[Counter[tuple[str, int | str]], list[float]]:
    """Return how often each answer was given, and the server's memory in MiB, measured once a second."""
    counts: Counter[tuple[str, int | str]] = Counter()
    memory: list[float] = []
    end = time.monotonic() + seconds

    async def one(number: int) -> None:
        draw = random.Random(seed + number)
        headers = {"Content-Type": "application/json"}
        async with httpx.AsyncClient(base_url=address, timeout=60, headers=headers) as client:
            while time.monotonic() < end:
                what, wish = draw.choice(list(wishes.items()))
                try:
                    method = "GET" if wish.body is None else "POST"
                    answer = await client.request(method, wish.path, content=wish.body)
                    counts[what, answer.status_code] += 1
                except httpx.HTTPError as error:
                    counts[what, type(error).__name__] += 1
                await asyncio.sleep(draw.random() * 0.1)

    async def watch() -> None:
        while time.monotonic() < end and (found := look(pid)) is not None:
            memory.append(found.memory / 2**20)
            await asyncio.sleep(1)

    await asyncio.gather(watch(), *(one(number) for number in range(clients)))
    return counts, memory


def grown(memory: list[float]) -> float:
    """Median memory of the last third minus that of the middle third, in MiB."""
    third = max(1, len(memory) // 3)
    return median(memory[-third:]) - median(memory[third : 2 * third] or memory[:third])
