"""Trees known beforehand: gold, balanced, left to right."""

import pytest
import torch
from given_trees import MIXED, random_merges
from torch import Tensor

from beamtree import create_encoder
from beamtree.zoo.fixed_trees import LevelsOnHost

D = 6
LENGTHS = torch.tensor(MIXED)


def make(name: str, **options):
    torch.manual_seed(0)
    return create_encoder(name, D, dtype=torch.float64, **options)


def make_input(lengths: Tensor = LENGTHS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    n = int(lengths.max())
    return torch.randn(len(lengths), n, D, dtype=torch.float64), torch.arange(n) >= lengths[:, None]


def compose_one_by_one(
    encoder, x: Tensor, lengths: Tensor, merges: Tensor, masks: dict | None = None
) -> Tensor:
    """The plain meaning of merges: a list of vectors, two of which become one."""
    roots = []
    for b, length in enumerate(lengths.tolist()):
        nodes = list(encoder.leaf(x[b, :length]))
        for t, j in enumerate(merges[b, : length - 1].tolist()):
            keep = None if masks is None else masks[b, t]
            nodes[j : j + 2] = [encoder.cell(nodes[j], nodes[j + 1], keep)]
        roots += nodes
    return torch.stack(roots)


def gradients(output: Tensor, x: Tensor, encoder) -> list[Tensor]:
    torch.manual_seed(5)
    return torch.autograd.grad(output, [x, *encoder.parameters()], torch.randn_like(output))


@pytest.mark.parametrize("seed", range(4))
def test_level_by_level_equals_one_merge_after_another(seed):
    encoder = make("gold-grc")
    x, is_padding = make_input()
    x.requires_grad_()
    merges = random_merges(LENGTHS, 7, seed)
    found = encoder(x, is_padding, merges=merges)
    expected = compose_one_by_one(encoder, x, LENGTHS, merges)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        gradients(found, x, encoder), gradients(expected, x, encoder), rtol=0, atol=1e-10
    )


def test_the_gold_tree_gives_every_node_its_own_dropout_mask(monkeypatch):
    encoder = make("gold-grc", dropout=0.4).train()
    x, is_padding = make_input()
    merges = random_merges(LENGTHS, 7)
    drawn = []
    draw = encoder.cell.draw_keep
    monkeypatch.setattr(encoder.cell, "draw_keep", lambda *shape: drawn.append(draw(*shape)) or drawn[-1])
    found = encoder(x, is_padding, merges=merges)
    # Nodes are composed lowest first, then by sequence and step.
    heights = [
        (height, b, t)
        for b, tree in enumerate(random_heights(merges, LENGTHS))
        for t, height in enumerate(tree)
    ]
    masks = {(b, t): drawn[0][place] for place, (_, b, t) in enumerate(sorted(heights))}
    assert len(drawn[0]) == len(masks) == int(LENGTHS.sum()) - len(LENGTHS)
    torch.testing.assert_close(found, compose_one_by_one(encoder, x, LENGTHS, merges, masks))


def random_heights(merges: Tensor, lengths: Tensor) -> list[list[int]]:
    found = []
    for b, length in enumerate(lengths.tolist()):
        alive, heights = [0] * length, []
        for j in merges[b, : length - 1].tolist():
            heights.append(1 + max(alive[j : j + 2]))
            alive[j : j + 2] = [heights[-1]]
        found.append(heights)
    return found


def test_a_balanced_tree_takes_as_many_rounds_as_it_is_high():
    merges = torch.tensor([[0, 1, 2, 3, 0, 1, 0]])
    assert LevelsOnHost.of(merges).ends == [4, 6, 7]
    assert LevelsOnHost.of(torch.zeros(1, 7, dtype=torch.int64)).ends == list(range(1, 8))


def test_the_gold_tree_must_be_given_and_must_fit():
    encoder = make("gold-grc")
    x, is_padding = make_input()
    with pytest.raises(ValueError, match="merges must hold the trees to follow"):
        encoder(x, is_padding)
    with pytest.raises(ValueError, match=r"merges must have shape \(B, n-1\) with B = 6, n = 7"):
        encoder(x, is_padding, merges=random_merges(LENGTHS, 7)[:, :-1])
    merges = random_merges(LENGTHS, 7)
    merges[3, 1] = 1
    with pytest.raises(ValueError, match="merges of sequence 3 at step 1 must be a position from 0 to 0"):
        encoder(x, is_padding, merges=merges)


def test_a_parametrized_cell_is_followed_as_it_is_called():
    encoder = make("gold-grc")
    torch.nn.utils.parametrizations.weight_norm(encoder.cell.w1)
    x, is_padding = make_input()
    x.requires_grad_()
    merges = random_merges(LENGTHS, 7)
    found = encoder(x, is_padding, merges=merges)
    expected = compose_one_by_one(encoder, x, LENGTHS, merges)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        gradients(found, x, encoder), gradients(expected, x, encoder), rtol=0, atol=1e-10
    )


def test_a_balanced_tree_is_what_its_merges_say():
    balanced, gold = make("balanced-grc"), make("gold-grc")
    x, is_padding = make_input()
    x.requires_grad_()
    root, trees = balanced(x, is_padding, need_trees=True)
    assert trees.brackets()[0] == "(((0 1) (2 3)) ((4 5) 6))"
    assert trees.brackets()[3] == "((0 1) 2)"
    expected = gold(x, is_padding, merges=trees.merges[:, 0])
    torch.testing.assert_close(root, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradients(root, x, balanced), gradients(expected, x, gold), rtol=0, atol=1e-10)


def test_the_recurrent_encoder_reads_left_to_right_from_its_own_start():
    encoder = make("recurrent-grc")
    torch.nn.init.normal_(encoder.initial)
    x, is_padding = make_input()
    root, trees = encoder(x, is_padding, need_trees=True)
    for b, length in enumerate(LENGTHS.tolist()):
        state = encoder.initial
        for leaf in encoder.leaf(x[b, :length]):
            state = encoder.cell(state, leaf)
        torch.testing.assert_close(root[b], state)
    assert trees.brackets()[4] == "(((((0 1) 2) 3) 4) 5)"


def test_a_second_direction_reads_the_same_tokens_backwards():
    encoder = make("recurrent-grc", bidirectional=True)
    x, is_padding = make_input()
    root = encoder(x, is_padding)
    for b, length in enumerate(LENGTHS.tolist()):
        forward, backward = encoder.initial, encoder.backward_initial
        for leaf in encoder.leaf(x[b, :length]):
            forward = encoder.cell(forward, leaf)
        for leaf in encoder.leaf(x[b, :length].flip(0)):
            backward = encoder.backward_cell(backward, leaf)
        torch.testing.assert_close(root[b], encoder.out(torch.cat((forward, backward))))
