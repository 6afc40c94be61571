"""A kernel is worked out once and launched directly from then on."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from beamtree.pytorch import launch as launching


class Kernel:
    """Notes how it was launched: through Triton's front door, or as what that compiled."""

    arg_names = ("x", "y", "count", "WIDTH", "DEEP")

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            self.launches.append(("worked out", grid))
            return Compiled(self)

        return run


class Compiled:
    """As Triton's compiled kernel calls its launcher, in 3.3 to 3.9."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def run(self, x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        assert (stream, *arguments[:5]) == (77, "function", "metadata", None, None, None)
        self.kernel.launches.append(((x, y, z), arguments[6:]))


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(launching, "_compiled", {})
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 77 + index, raising=False)
    return SimpleNamespace(device=torch.device("cuda", 0), dtype=torch.int64, data_ptr=lambda: 32)


def test_the_second_launch_passes_the_constants_in_the_kernels_order(on_gpu: Any) -> None:
    kernel, y = Kernel(), torch.zeros(8)
    for count in (3, 4):
        launching.launch(kernel, (count, 2), on_gpu, y, count, DEEP=True, WIDTH=16, num_warps=4)
    assert kernel.launches == [("worked out", (3, 2)), ((4, 2, 1), (y.data_ptr(), 4, 16, True))]


def test_other_options_and_other_types_are_worked_out_anew(on_gpu: Any) -> None:
    kernel, y = Kernel(), torch.zeros(8)
    for given, width in ((y, 16), (y, 32), (y.double(), 16)):
        launching.launch(kernel, (1,), on_gpu, given, 1, WIDTH=width, DEEP=True)
    assert kernel.launches == [("worked out", (1,))] * 3


def test_a_tensor_at_an_odd_address_takes_the_slow_way_and_is_not_remembered(on_gpu: Any) -> None:
    kernel, y = Kernel(), torch.zeros(8)
    for given in (y[1:], y[1:], y, y):
        launching.launch(kernel, (1,), on_gpu, given, 1, WIDTH=16, DEEP=True)
    assert [launch[0] for launch in kernel.launches] == ["worked out"] * 3 + [(1, 1, 1)]


def test_blocks_and_powers_of_two_are_rounded_up() -> None:
    assert [launching.blocks(count, 4) for count in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [launching.power_of_two(number) for number in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]


def test_on_a_cpu_every_launch_is_tritons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, x = Kernel(), torch.zeros(8)
    for _ in range(2):
        launching.launch(kernel, (1,), x, x, 1, WIDTH=16, DEEP=True)
    assert kernel.launches == [("worked out", (1,))] * 2
