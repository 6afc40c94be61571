"""How many graphs a user's cell has, how large, for how long, and when none; the CPU plays the GPU."""

import copy
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from own_cells import MeanCell, gradients, make_encoder, make_input
from played_graphs import Recording
from test_cell_graphs import agree, launched, owned
from torch import Tensor, nn

from beamtree.classifier.inference import evaluating
from beamtree.graphs import cell_graphs
from beamtree.graphs.cell_graphs import padded_sizes
from beamtree.pytorch import capturing


def test_batches_of_many_sizes_share_few_graphs_with_bounded_memory(captures: list[Recording]) -> None:
    assert [padded_sizes(B, 5, None)[0] for B in (1, 3, 15, 17, 18, 100, 128, 130)] == [
        1, 3, 15, 18, 18, 104, 128, 144,
    ]  # fmt: skip
    assert [padded_sizes(1, n, None)[1] for n in (2, 16, 17, 100, 1750)] == [16, 16, 32, 128, 2048]
    assert [padded_sizes(1, 5, P)[2] for P in (0, 1, 3, 8)] == [1, 1, 4, 8]

    encoder = make_encoder()
    with torch.no_grad():
        for n in (5, 20, 40):
            encoder(*make_input([n]))
        everything = owned(encoder).nbytes
        assert len(owned(encoder)) == len(captures) == 3
        owned(encoder).bytes_at_most = everything - 1
        encoder(*make_input([40]))
        assert len(owned(encoder)) == 2
        encoder(*make_input([20]))
        assert len(captures) == 3
        owned(encoder).bytes_at_most = 1000
        assert encoder(*make_input([5])).isfinite().all()
        assert len(captures) == 3  # too large for any
        owned(encoder).bytes_at_most = everything
        owned(encoder).capacity = 1
        encoder(*make_input([5]))
        assert len(owned(encoder)) == 1


def test_shapes_that_change_too_often_end_the_captures_with_a_warning(
    captures: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_graphs, "CAPACITY", 2)
    encoder = make_encoder()
    with torch.no_grad():
        for B in [1] * 8 + [*range(2, 10)]:
            encoder(*make_input([3] * B))
        assert len(captures) == 9  # most calls found theirs
        with pytest.warns(UserWarning, match="change too often"):
            encoder(*make_input([3] * 10))
    assert len(owned(encoder)) == 0


def test_graphs_go_with_their_cell_and_copies_start_without(captures: list[Recording]) -> None:
    encoder, given = make_encoder(), make_input([6, 3])
    for _ in range(2):
        encoder(*given)
    before = len(cell_graphs._owners)
    assert copy.deepcopy(encoder).cell not in cell_graphs._owners
    del encoder
    gc.collect()
    assert len(cell_graphs._owners) == before - 1


class Peeking(MeanCell):
    """Looks at a value, which a graph cannot."""

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().forward(left, right, keep) * (1.0 if left.sum() > 1e9 else 0.5)


class Selecting(MeanCell):
    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        parents = super().forward(left, right, keep)
        return parents.index_put((parents[:, 0] > 0,), parents[parents[:, 0] > 0] / 2)


class Picking(MeanCell):
    """Indexes by numbers, which a graph can."""

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        order = torch.arange(left.shape[1], device=left.device).flip(0)
        return super().forward(left[:, order], right, keep)


@pytest.mark.parametrize("cell", [Peeking, Selecting, Picking])
def test_a_cell_that_waits_for_the_device_is_launched_with_one_warning(
    captures: list[Recording], cell: type[nn.Module]
) -> None:
    encoder, given = make_encoder(cell), make_input([6, 3])
    expected = launched(encoder, *given)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            agree(gradients(encoder, *given), expected)
    told = [
        str(one.message) for one in caught if "no CUDA graphs of your cell and scorer" in str(one.message)
    ]
    assert len(told) == (cell is not Picking)
    assert all("makes the host wait for the device" in one for one in told)
    assert bool(captures) == (cell is Picking)


def test_a_failed_capture_frees_what_was_captured(
    captures: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, given = make_encoder(), make_input([6, 3])
    expected = launched(encoder, *given)
    with torch.no_grad():
        encoder(*given), encoder(*given)
    assert len(owned(encoder)) == 1

    def fail(*_: object) -> None:
        raise RuntimeError("capture invalidated")

    monkeypatch.setattr(capturing, "warm_up_and_capture", fail)
    with pytest.warns(UserWarning, match="slower but just as exact: capture invalidated"):
        agree(gradients(encoder, *given), expected)
    assert len(owned(encoder)) == 0


def test_no_graphs_where_a_replay_would_miss_something(captures: list[Recording]) -> None:
    given = make_input([6, 3])
    seen: list[object] = []

    def use(encoder: nn.Module, *given: Tensor, **options: object) -> None:
        for _ in range(3):
            encoder(*given, **options)

    hooked = make_encoder()
    hooked.cell.out.register_forward_hook(lambda *_: seen.append(1))
    use(hooked, *given)
    assert len(seen) > 3
    unwilling = make_encoder()
    unwilling.scorer.cuda_graphs = False
    use(unwilling, *given)
    elsewhere = make_encoder()
    elsewhere.cell.table = [torch.zeros(1, device="meta")]
    use(elsewhere, *given)
    replica = make_encoder()
    replica.cell._is_replica = True
    use(replica, *given)
    use(evaluating(make_encoder().train()), *given)
    encoder = make_encoder()
    use(encoder, *make_input([1, 1]))
    use(encoder, make_input([2, 2])[0][:0])
    use(encoder, *given, merges=torch.tensor([[0] * 5, [1, 0, -1, -1, -1]]))
    encoder.merge_equal_trees = True
    use(encoder, *given)
    assert not captures


def test_threads_take_turns(captures: list[Recording]) -> None:
    encoder, lengths = make_encoder(), ([6, 3], [9, 2], [4, 8], [5, 5])
    inputs = [make_input(some) for some in lengths]
    with torch.no_grad():
        encoder(*inputs[0]), encoder(*inputs[0])
        expected = [encoder(*given) for given in inputs]
    found: dict[int, Tensor] = {}

    def work(i: int) -> None:
        for _ in range(3):
            with torch.no_grad():
                found[i] = encoder(*inputs[i])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    agree([found[i] for i in range(4)], expected)
    assert len(captures) == 1
