"""200 lengths on a GPU, three times: memory, file handles and threads stay; same seed, same bytes.

`python -m tools.trust.gpu` where there is one; it takes less than a minute.
"""

import gc
import hashlib
import os
import random
import sys
import time

from tools.trust import Tally

TURN_SECONDS = 14  # so that three of them fit into a minute


def run(*, seed: int = 0) -> list[Tally]:
    import torch

    from beamtree import BeamTreeEncoder

    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    lengths = random.Random(seed).sample(range(1, 600), 200)
    torch.manual_seed(seed)
    encoder = BeamTreeEncoder(64, beam_size=5, dropout=0.1).cuda()
    optimizer = torch.optim.AdamW(encoder.parameters(), 1e-4)
    states = []
    for turn in range(3):
        began, steps = time.monotonic(), 0
        for n in lengths:
            if time.monotonic() - began > TURN_SECONDS:
                break
            encoder(torch.randn(4, n, 64, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        states.append(_state())
        allocated, reserved, resident, handles, threads = states[-1]
        mebibytes = [f"{size / 2**20:.1f}" for size in (allocated, reserved, resident)]
        print(
            f"turn {turn}: {steps} lengths in {time.monotonic() - began:.1f} s; MiB allocated, reserved, "
            f"resident {' '.join(mebibytes)}; {handles} handles, {threads} threads",
            flush=True,
        )
    flat = Tally("memory allocated, handles and threads after the second and the third turn")
    for name, place in (("allocated", 0), ("handles", 3), ("threads", 4)):
        flat.note(
            states[2][place] <= states[1][place], f"{name}: {states[1][place]}, then {states[2][place]}"
        )
    same = Tally("same seed, same bytes of all gradients")
    torch.use_deterministic_algorithms(True)
    same.note(_gradients(lengths[:10]) == _gradients(lengths[:10]), "they differ")
    print(flat, same, sep="\n", flush=True)
    return [flat, same]


def _state() -> tuple[int, int, int, int, int]:
    import torch

    gc.collect()
    torch.cuda.synchronize()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    handles, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), resident, handles, threads


def _gradients(lengths: list[int]) -> str:
    import torch

    from beamtree import BeamTreeEncoder

    torch.manual_seed(1)
    encoder = BeamTreeEncoder(64, beam_size=5, dropout=0.1).cuda()
    for n in lengths:
        encoder(torch.randn(4, n, 64, device="cuda")).square().mean().backward()
    found = [parameter.grad for parameter in encoder.parameters()]
    return hashlib.sha256(b"".join(x.cpu().numpy().tobytes() for x in found if x is not None)).hexdigest()


if __name__ == "__main__":
    sys.exit(any(tally.failures for tally in run()))
