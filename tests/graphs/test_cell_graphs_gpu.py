"""On a GPU a cell and scorer of the user's give, as CUDA graphs, what they give launched kernel by kernel."""

import gc
import threading
import warnings

import pytest
import torch
from on_gpu import needs_gpu
from own_cells import DotScorer, GatedSum, MeanCell, gradients, make_encoder, make_input
from torch import Tensor, nn

from beamtree.graphs import cell_graphs

pytestmark = [pytest.mark.gpu, needs_gpu]

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def launched(encoder: nn.Module, *given: Tensor, **options: object) -> list[Tensor]:
    encoder.cell.cuda_graphs = False
    try:
        return gradients(encoder, *given, **options)
    finally:
        del encoder.cell.cuda_graphs


def agree(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        scale = (
            1.0 if other.dtype == torch.int64 else float(other[other.isfinite()].abs().max().clamp(min=1.0))
        )
        torch.testing.assert_close(mine, other, rtol=0, atol=tolerance * scale)


def captured(encoder: nn.Module) -> int:
    return len(cell_graphs._owners[encoder.cell])


@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["calm", "noise and dropout"])
@pytest.mark.parametrize(
    ("cell", "scorer", "dtype"),
    [
        (MeanCell, DotScorer, torch.float64),
        (GatedSum, None, torch.float64),
        (None, DotScorer, torch.float64),
        (MeanCell, DotScorer, torch.float32),
    ],
)
def test_values_trees_and_gradients_agree(
    cell: type[nn.Module] | None, scorer: type[nn.Module] | None, dtype: torch.dtype, dropout: float
) -> None:
    kind = {"device": "cuda", "dtype": dtype}
    encoder = make_encoder(cell, scorer, d_model=32, beam_size=5, dropout=dropout, **kind)
    batches = [
        [17, 3, 1, 2, 9, 17],
        [1, 2, 3, 3, 2, 1],
        [2] * 6,
        [1] * 6,
        [31, 7, 32, 16, 15, 17],
        [3, 1] * 3,
    ]
    for lengths in batches:
        given = make_input(lengths, 32, **kind)
        for _ in range(2):
            agree(gradients(encoder, *given), launched(encoder, *given), TOLERANCE[dtype])
        with torch.no_grad():
            for weight in encoder.parameters():
                weight.add_(0.01 * torch.randn_like(weight))
    assert captured(encoder) == 2 + len(cell_graphs.PULLED_ROWS)


@pytest.mark.parametrize("own", [(MeanCell, DotScorer), (None, None)], ids=["own", "built-in"])
def test_pinned_spans_agree(own: tuple[type[nn.Module] | None, ...]) -> None:
    kind = {"device": "cuda", "dtype": torch.float64}
    encoder = make_encoder(*own, d_model=16, beam_size=4, **kind)
    given = make_input([12, 5, 9], 16, **kind)
    for pins in (
        [[(1, 4)], [], [(0, 3), (3, 9)]],
        [[(1, 4), (1, 3)], [(0, 2)], []],
        [[(6, 12), (8, 10)], [], []],
    ):
        ours = gradients(encoder, *given, pinned_spans=pins)
        agree(ours, launched(encoder, *given, pinned_spans=pins), 1e-10)
    assert captured(encoder) > 0


def test_autocast_agrees_and_follows_the_weights() -> None:
    encoder = make_encoder(d_model=32, beam_size=5, device="cuda")
    given = make_input([3, 2, 3], 32, device="cuda")  # so short that every tree is in the beam
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            agree(gradients(encoder, *given)[:1], launched(encoder, *given)[:1], 2e-2)
        with torch.no_grad():
            encoder.cell.out.weight.mul_(1.2)
    assert captured(encoder) > 0


def test_graphs_and_their_memory_go_with_the_cell() -> None:
    held = []
    owners = len(cell_graphs._owners)
    for _ in range(3):
        encoder = make_encoder(d_model=64, beam_size=5, device="cuda")
        x, is_padding = make_input([100] * 16, 64, device="cuda")
        for _ in range(3):
            encoder(x, is_padding).sum().backward()
        assert captured(encoder) > 0
        del encoder, x, is_padding
        gc.collect()
        torch.cuda.synchronize()
        held.append(torch.cuda.memory_allocated())
    assert len(cell_graphs._owners) == owners
    assert held[2] - held[0] < 1 << 20  # what libraries keep for themselves is there after the first


class Peeking(MeanCell):
    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().forward(left, right, keep) * (1.0 if float(left.sum()) > 1e9 else 0.5)


class Copying(MeanCell):
    """Waits for the device in a way that is seen only in the capture."""

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        torch.cuda.current_stream().synchronize()
        return super().forward(left, right, keep)


@pytest.mark.parametrize("cell", [Peeking, Copying])
def test_a_cell_that_cannot_be_captured_is_launched_and_disturbs_nobody(cell: type[nn.Module]) -> None:
    kind = {"device": "cuda", "dtype": torch.float64}
    given = make_input([12, 5, 9], 16, **kind)
    encoder = make_encoder(cell, d_model=16, **kind)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            agree(gradients(encoder, *given), launched(encoder, *given), 1e-10)
    assert sum("no CUDA graphs of your cell" in str(one.message) for one in caught) == 1
    assert captured(encoder) == 0
    other = make_encoder(d_model=16, **kind)
    for _ in range(3):
        agree(gradients(other, *given), launched(other, *given), 1e-10)
    assert captured(other) > 0


def test_streams_and_threads_do_not_disturb_each_other() -> None:
    kind = {"device": "cuda", "dtype": torch.float64}
    encoder = make_encoder(d_model=16, **kind)
    inputs = [make_input(lengths, 16, **kind) for lengths in ([12, 5], [9, 14], [16, 2], [7, 7])]
    expected = [launched(encoder, *given) for given in inputs]
    torch.cuda.synchronize()
    wrong: list[BaseException] = []

    def work(i: int, stream: torch.cuda.Stream) -> None:
        try:
            for _ in range(4):
                with torch.cuda.stream(stream):
                    agree(gradients(encoder, *inputs[i]), expected[i], 1e-10)
        except BaseException as error:
            wrong.append(error)

    streams = [torch.cuda.Stream(), torch.cuda.current_stream()]
    threads = [threading.Thread(target=work, args=(i, streams[i % 2])) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
