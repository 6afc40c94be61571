"""Replayed as CUDA graphs, a user's cell and scorer give what they give launched; the CPU plays the GPU."""

import pytest
import torch
from own_cells import D, DotScorer, GatedSum, InPlace, MeanCell, gradients, make_encoder, make_input
from played_graphs import Recording
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from beamtree import cuda_graphs
from beamtree.graphs import cell_graphs
from beamtree.recursion import beam_tree_recursion


def launched(encoder: nn.Module, *given: Tensor, **options: object) -> list[Tensor]:
    with cuda_graphs(False):
        return gradients(encoder, *given, **options)


def agree(ours: list[Tensor], theirs: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def owned(encoder: nn.Module) -> cell_graphs.CellGraphs:
    return cell_graphs._owners[encoder.cell]


@pytest.mark.parametrize("dropout", [0.0, 0.4], ids=["calm", "noise and dropout"])
@pytest.mark.parametrize(
    ("cell", "scorer"), [(MeanCell, DotScorer), (GatedSum, None), (None, DotScorer), (InPlace, None)]
)
def test_replays_give_values_trees_and_gradients_of_the_launched_recursion(
    captures: list[Recording], cell: type[nn.Module] | None, scorer: type[nn.Module] | None, dropout: float
) -> None:
    encoder = make_encoder(cell, scorer, dropout=dropout)
    for lengths in ([6, 3, 1], [9, 2, 7], [1, 1, 2], [3, 3, 3], [16, 1, 5]):
        given = make_input(lengths)
        agree(gradients(encoder, *given), launched(encoder, *given))
    assert len(captures) == 3 + (dropout > 0.0)  # a step, its draws and two sizes of a level: all lengths
    assert len(owned(encoder)) == 3


@pytest.mark.parametrize("own", [(MeanCell, DotScorer), (None, None)], ids=["own", "built-in"])
def test_pinned_spans_and_inner_nodes_are_those_of_the_launched_recursion(
    captures: list[Recording], own: tuple[type[nn.Module] | None, ...]
) -> None:
    encoder = make_encoder(*own)
    for lengths, pins in (
        ([6, 4], [[(1, 4)], []]),
        ([7, 5], [[(0, 3), (3, 6), (4, 6)], [(2, 4)]]),
        ([5, 5], [[(2, 5), (0, 2), (3, 5)], [(1, 5)]]),
        ([8, 2], [[(1, 6), (2, 4), (0, 7)], [(0, 2)]]),
    ):
        x, is_padding = make_input(lengths)
        found = gradients(encoder, x, is_padding, pinned_spans=pins)
        agree(found, launched(encoder, x, is_padding, pinned_spans=pins))
        forest = encoder.forest(x, is_padding)
        with cuda_graphs(False):
            other = encoder.forest(x, is_padding)
        torch.testing.assert_close(forest.nodes, other.nodes, rtol=0, atol=1e-10)
        assert torch.equal(forest.trees.merges, other.trees.merges)
    assert captures


def test_a_second_call_reads_the_weights_of_that_moment(captures: list[Recording]) -> None:
    encoder, given = make_encoder(), make_input([6, 3])
    for _ in range(3):
        agree(gradients(encoder, *given), launched(encoder, *given))
        with torch.no_grad():
            for weight in encoder.parameters():
                weight += 0.1
    captured = len(captures)
    encoder.cell.out.weight = nn.Parameter(encoder.cell.out.weight.detach().clone() * 2)  # another address
    for _ in range(3):
        agree(gradients(encoder, *given), launched(encoder, *given))
    assert len(captures) == 2 * captured


def test_a_number_changed_on_the_scorer_or_a_cell_in_evaluation_is_followed(
    captures: list[Recording],
) -> None:
    encoder, given = make_encoder(dropout=0.3), make_input([6, 3])
    for temperature in (1.0, 1.0, 3.0, 3.0):
        encoder.scorer.temperature = temperature
        agree(gradients(encoder, *given), launched(encoder, *given))
    encoder.eval()
    for _ in range(3):
        agree(gradients(encoder, *given), launched(encoder, *given))


def test_every_call_draws_anew(captures: list[Recording]) -> None:
    encoder, (x, is_padding) = make_encoder(dropout=0.3), make_input([8, 7])
    assert len({encoder(x, is_padding).sum().item() for _ in range(8)}) == 8


def test_results_and_what_the_backward_needs_are_the_callers_to_keep(captures: list[Recording]) -> None:
    encoder, one, other = make_encoder(), make_input([7, 4]), make_input([5, 6])
    expected = []
    with cuda_graphs(False):
        for given in (one, other):
            root, trees = encoder(*given, need_trees=True)
            loss = root.square().sum() + trees.weights[:, 0].sum()
            expected += torch.autograd.grad(loss, given[0])
    encoder(*one)
    roots = [encoder(*given, need_trees=True) for given in (one, other, one)]
    for (x, _), (root, trees), wanted in zip((one, other), roots, expected, strict=False):
        loss = root.square().sum() + trees.weights[:, 0].sum()
        for keep in (True, False):
            agree(list(torch.autograd.grad(loss, x, retain_graph=keep)), [wanted])
    assert captures


def test_a_graph_of_an_inference_serves_training(captures: list[Recording]) -> None:
    encoder, given = make_encoder(), make_input([6, 3])
    with torch.inference_mode():
        for _ in range(3):
            encoder(*given)
    assert len(captures) == 1
    agree(gradients(encoder, *given), launched(encoder, *given))
    assert len(captures) == 3
    with torch.inference_mode():
        encoder(*given)


def test_autocast_has_graphs_of_its_own_that_follow_the_weights(captures: list[Recording]) -> None:
    encoder = make_encoder(dtype=torch.float32)
    given = make_input([6, 3], dtype=torch.float32)
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours = gradients(encoder, *given)
            theirs = launched(encoder, *given)
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
        with torch.no_grad():
            encoder.cell.out.weight.mul_(1.5)
    cast = len(captures)
    for _ in range(2):
        gradients(encoder, *given)
    assert cast > 0
    assert len(captures) == 2 * cast


def test_checkpointing_finds_in_the_second_forward_what_the_first_kept(captures: list[Recording]) -> None:
    encoder, (x, is_padding) = make_encoder(dropout=0.3), make_input([6, 3])
    wanted = [x, *encoder.parameters()]

    def loss(checkpointed: bool) -> Tensor:
        torch.manual_seed(2)
        root = (
            checkpoint(encoder, x, is_padding, use_reentrant=False)
            if checkpointed
            else encoder(x, is_padding)
        )
        return root.square().sum()

    agree(*(list(torch.autograd.grad(loss(again), wanted)) for again in (True, False)))
    assert captures


def test_a_step_of_the_search_and_a_level_of_the_gradient_are_a_launch_each(
    captures: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_graphs, "PULLED_ROWS", (64,))
    encoder, (x, is_padding) = make_encoder(dropout=0.3), make_input([15, 9])
    replays: list[Recording] = []
    replay = Recording.replay

    def count(self: Recording) -> None:
        replays.append(self)
        replay(self)

    monkeypatch.setattr(Recording, "replay", count)
    root, trees = encoder(x, is_padding, need_trees=True)
    assert len(captures) == 3
    assert len(replays) == 1 + 14  # all numbers drawn at once, then a step each
    root.sum().backward()
    assert len(replays) - 15 == trees.heights.amax()


def test_weights_cached_by_a_parametrization_are_not_captured(captures: list[Recording]) -> None:
    # They are freed at the end of the block, so a graph would read freed memory.
    encoder, given = make_encoder(), make_input([6, 3])
    parametrizations.weight_norm(encoder.cell.hidden)
    for _ in range(2):
        with parametrize.cached():
            found = gradients(encoder, *given)
        agree(found, launched(encoder, *given))
        with torch.no_grad():
            for weight in encoder.parameters():
                weight += 0.1
    assert not captures


def test_a_scorer_that_forbids_every_merge_is_refused_by_graphs_too(captures: list[Recording]) -> None:
    class Forbidding(DotScorer):
        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return torch.where(left[:, 0] > 100, -torch.inf, super().forward(left, right))

    encoder, lengths = make_encoder(MeanCell, Forbidding), torch.tensor([6, 3, 4])
    leaves = torch.randn(3, 6, D, dtype=torch.float64)
    stuck = leaves.clone()
    stuck[1, :, 0] = 1000.0

    def search(leaves: Tensor) -> Tensor:
        return beam_tree_recursion(leaves, lengths, encoder.cell, encoder.scorer, beam_size=3).root()

    expected = search(leaves)
    assert captures
    with pytest.raises(ValueError, match="every merge that the beams of sequence 1 have left"):
        search(stuck)
    assert torch.equal(search(leaves), expected)
