"""How the explorer bears up: the time of single requests, then a crowd of clients and the server's memory.

    python tools/explorer_load.py --clients 50 --seconds 60

Starts `beamtree serve` on a free port of this machine. Fails if an answer has a status that is not documented
for what was asked, if a request of the crowd breaks off, or if memory grows.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from beamtree.data.listops import sample_expressions

Counts = collections.Counter[tuple[str, int | str]]
DOCUMENTED = {
    "9 tokens": {200, 429},
    "100 tokens": {200, 429},
    "300 tokens": {200, 429, 503},
    "a wrong token": {422, 429},
    "too many tokens": {413, 429},
    "too many bytes": {413},
    "not JSON": {422},
    "the models": {200},
    "the page": {200},
    "nothing there": {404},
}


def expression(tokens: int) -> str:
    (drawn,) = sample_expressions(1, seed=tokens, min_length=tokens, max_length=tokens)
    return " ".join(drawn.sentences[0])


@contextmanager
def running_explorer(*options: str) -> Iterator[tuple[int, str]]:
    """The process and the address of a fresh one."""
    command = [sys.executable, "-m", "beamtree.cli", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r"http://\S+", process.stdout.readline() if process.stdout else "")
            if found is None:
                raise SystemExit("the explorer did not start")
            yield process.pid, found.group()
        finally:
            process.terminate()


def time_requests(address: str, tokens: int, count: int) -> list[float]:
    """Seconds of each of `count` requests, one after the other, the first of a process included."""
    body = {"texts": [expression(tokens)]}
    seconds = []
    with httpx.Client(base_url=address, timeout=60) as client:
        for _ in range(count):
            begun = time.perf_counter()
            client.post("/api/view", json=body).raise_for_status()
            seconds.append(time.perf_counter() - begun)
    return seconds


async def send(client: httpx.AsyncClient, what: str, texts: dict[str, str]) -> int:
    if what == "the models":
        return (await client.get("/api/models")).status_code
    if what == "the page":
        return (await client.get("/")).status_code
    if what == "nothing there":
        return (await client.get("/static/../../etc/passwd")).status_code
    if what == "not JSON":
        headers = {"Content-Type": "application/json"}
        return (await client.post("/api/view", content="{", headers=headers)).status_code
    return (await client.post("/api/view", json={"texts": [texts[what]]})).status_code


async def crowd(address: str, pid: int, clients: int, seconds: float) -> tuple[Counts, list[float]]:
    """What was answered how often, and the server's memory in MiB, once a second."""
    texts = {f"{n} tokens": expression(n) for n in (9, 100, 300)}
    texts |= {"a wrong token": "[MAX 2 x ]", "too many tokens": "1 " * 2000, "too many bytes": "1 " * 50_000}
    counts: Counts = collections.Counter()
    memory: list[float] = []
    end = time.monotonic() + seconds

    async def one(number: int) -> None:
        draw = random.Random(number)
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            while time.monotonic() < end:
                what = draw.choice(list(DOCUMENTED))
                try:
                    counts[what, await send(client, what, texts)] += 1
                except httpx.HTTPError as error:
                    counts[what, type(error).__name__] += 1
                await asyncio.sleep(draw.random() * 0.1)

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(resident(pid))
            await asyncio.sleep(1)

    await asyncio.gather(watch(), *(one(number) for number in range(clients)))
    memory.append(resident(pid))
    return counts, memory


def resident(pid: int) -> float:
    """MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def grown(memory: list[float]) -> float:
    """How much more memory the last third needed than the middle one, at the median, in MiB."""
    third = max(1, len(memory) // 3)
    return statistics.median(memory[-third:]) - statistics.median(memory[third : 2 * third] or memory[:third])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--requests", type=int, default=20, help="of each length, for their times")
    parser.add_argument("--lengths", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--growth", type=float, default=20, help="MiB that memory may grow")
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"load_average": os.getloadavg()[0], "times": {}}
    with running_explorer() as (pid, address):
        for tokens in options.lengths:
            seconds = time_requests(address, tokens, options.requests)
            report["times"][f"{tokens} tokens"] = {
                "requests": len(seconds),
                "median": round(statistics.median(seconds), 3),
                "most": round(max(seconds), 3),
            }
        counts, memory = asyncio.run(crowd(address, pid, options.clients, options.seconds))
    report["clients"], report["seconds"] = options.clients, options.seconds
    report["answers"] = {
        f"{what}: {status}": count for (what, status), count in sorted(counts.items(), key=str)
    }
    report["memory"] = {"first": memory[0], "most": max(memory), "last": memory[-1], "grown": grown(memory)}
    wrong = {f"{what}: {status}" for what, status in counts if status not in DOCUMENTED[what]}
    report["wrong"] = sorted(wrong)
    print(json.dumps(report, indent=2))
    return 1 if wrong or grown(memory) > options.growth else 0


if __name__ == "__main__":
    sys.exit(main())
