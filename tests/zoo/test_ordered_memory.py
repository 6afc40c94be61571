"""Ordered Memory against its equations written out, one sequence and one slot at a time."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from on_gpu import needs_gpu
from small_encoders import assert_same, gradients, random_tokens
from torch import Tensor

from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo import ordered_memory, ordered_memory_step
from beamtree.zoo.ordered_memory import OrderedMemory
from beamtree.zoo.ordered_memory_step import Masks, draw_masks

LENGTHS = (7, 1, 2, 3, 9, 4)
D = 6


def make_encoder(d: int = D, slots: int = 4, **options: float) -> OrderedMemory:
    torch.manual_seed(1)
    encoder = OrderedMemory(d, memory_slots=slots, dtype=torch.float64, **options)
    with torch.no_grad():
        encoder.beta.weight.mul_(20)  # so that the attention is far from uniform
    return encoder


def reference(
    encoder: OrderedMemory,
    x: Tensor,
    query_mask: Tensor | None = None,
    masks: list[Masks] | None = None,
    b: int = 0,
) -> Tensor:
    """The sentence vector of one sequence x (n, d), by the equations."""
    S, d = encoder.memory_slots, encoder.d_model

    def norm(y: Tensor) -> Tensor:
        return F.layer_norm(y, (d,), encoder.memory_norm.weight, encoder.memory_norm.bias)

    def mask(t: int, part: str, j: int) -> Tensor | float:
        return 1.0 if masks is None else getattr(masks[t], part)[j, b]

    def cell(t: int, j: int, v: Tensor, m: Tensor) -> Tensor:
        pair = torch.cat((v * mask(t, "left", j), m * mask(t, "right", j)))
        a, b_, g, c = encoder.cell["w2"](F.gelu(encoder.cell["w1"](pair)) * mask(t, "hidden", j)).chunk(4)
        return norm(a.sigmoid() * v + b_.sigmoid() * m + g.sigmoid() * c)

    leaf = norm(encoder.leaf["linear"](x))
    M = [torch.zeros(d, dtype=x.dtype) for _ in range(S)]
    M_hat = [leaf[0]] * S
    p = [torch.zeros((), dtype=x.dtype) for _ in range(S)]
    for t in range(1, len(x)):
        q = encoder.query(leaf[t] * (1.0 if query_mask is None else query_mask[t, b]))
        weighed = []
        for j in range(S):
            k = encoder.key(M_hat[j] * mask(t, "key", j))
            beta = encoder.beta(F.gelu(q + k) * mask(t, "score", j)).squeeze() / math.sqrt(d)
            g = sum(p[: j + 2]) if j < S - 1 else torch.ones((), dtype=x.dtype)
            weighed.append(beta.exp() * (g if g >= 1e-5 else 0.0))
        p = [w / sum(weighed) for w in weighed]
        M = [M[j] * (1 - sum(p[j:])) + M_hat[j] * sum(p[j:]) for j in range(S)]
        v, M_hat = leaf[t], []
        for j in range(S):
            cp = sum(p[: j + 1])
            v = leaf[t] * (1 - cp) + cell(t, j, v, M[j]) * cp
            M_hat.append(v)
    return M_hat[-1]


def test_outputs_and_gradients_are_those_of_the_equations() -> None:
    encoder, (x, is_padding) = make_encoder(), random_tokens(LENGTHS, D)
    x.requires_grad_()
    ours = encoder(x, is_padding)
    theirs = torch.stack([reference(encoder, x[b, :n]) for b, n in enumerate(LENGTHS)])
    assert_same([ours], [theirs])
    assert_same(gradients(ours, x, encoder), gradients(theirs, x, encoder))


def test_dropout_acts_where_the_equations_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (x, is_padding) = (
        make_encoder(dropout=0.3, memory_dropout=0.2).train(),
        random_tokens(LENGTHS, D),
    )
    x.requires_grad_()
    seed = torch.tensor(5)
    monkeypatch.setattr(ordered_memory, "draw_seed", lambda device: seed)
    B, n, d = x.shape
    torch.manual_seed(3)
    query_mask = F.dropout(torch.ones(n, B, d, dtype=x.dtype), 0.2)
    like = x.new_zeros(encoder.memory_slots, B, d)
    rates = {"dropout": 0.3, "memory_dropout": 0.2}
    masks = [Masks.of(*draw_masks(seed, torch.tensor(t), like, **rates), d) for t in range(n)]
    torch.manual_seed(3)
    ours = encoder(x, is_padding)
    theirs = torch.stack(
        [reference(encoder, x[b, :length], query_mask, masks, b) for b, length in enumerate(LENGTHS)]
    )
    assert_same([ours], [theirs])
    assert_same(gradients(ours, x, encoder), gradients(theirs, x, encoder))


def test_masks_are_scaled_and_independent() -> None:
    like = torch.zeros(40, 30, 8)
    masks = Masks.of(*draw_masks(torch.tensor(1), torch.tensor(2), like, dropout=0.3, memory_dropout=0.3), 8)
    for mask in masks:
        assert mask is not None
        assert abs(mask.mean().item() - 1) < 0.05
        assert set(mask.unique().tolist()) == {0.0, masks.key.max().item()}
    both = (masks.key > 0) & (masks.left > 0)
    assert abs(both.float().mean().item() - 0.49) < 0.03
    again = Masks.of(*draw_masks(torch.tensor(1), torch.tensor(3), like, dropout=0.3, memory_dropout=0.0), 8)
    assert again.key is None
    assert not torch.equal(again.left, masks.left)


def test_skipping_closed_slots_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (x, is_padding) = make_encoder(slots=9), random_tokens(LENGTHS, D)
    x.requires_grad_()
    skipped: list[int] = []
    find = ordered_memory_step._first_open_slot
    monkeypatch.setattr(
        ordered_memory_step, "_first_open_slot", lambda cp: skipped.append(find(cp)) or skipped[-1]
    )
    output = encoder(x, is_padding)
    fast = [output, *gradients(output, x, encoder)]
    assert skipped[0] == 8
    monkeypatch.setattr(ordered_memory_step, "_first_open_slot", lambda cp: 0)
    output = encoder(x, is_padding)
    assert_same(fast, [output, *gradients(output, x, encoder)], 1e-12)


def test_one_slot_is_a_chain() -> None:
    encoder, (x, is_padding) = make_encoder(slots=1), random_tokens(LENGTHS, D)
    x.requires_grad_()
    output = encoder(x, is_padding)
    theirs = torch.stack([reference(encoder, x[b, :n]) for b, n in enumerate(LENGTHS)])
    assert_same([output, *gradients(output, x, encoder)], [theirs, *gradients(theirs, x, encoder)])


def test_evaluation_may_have_other_slots_than_training() -> None:
    encoder, (x, _) = make_encoder(slots=3, test_slots=6), random_tokens(LENGTHS, D)
    more, fewer = make_encoder(slots=6).eval(), make_encoder(slots=3).eval()
    torch.testing.assert_close(encoder.train()(x), fewer(x))
    torch.testing.assert_close(encoder.eval()(x), more(x))
    assert (more(x) - fewer(x)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_slots": 0}, "memory_slots must be at least 1, got 0"),
        ({"test_slots": -1}, "test_slots must be at least 1, got -1"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"memory_dropout": -0.1}, r"memory_dropout must lie in \[0, 1\), got -0.1"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OrderedMemory(4, **options)


@st.composite
def slot_histories(draw: st.DrawFn) -> list[int]:
    """What hard attention may do: the last slot at the second token, then at most one slot down at a time."""
    S, n = 12, draw(st.integers(1, 10))
    slots = [0, S - 1]
    for _ in range(n - 2):
        slots.append(draw(st.integers(max(slots[-1] - 1, 0), S - 1)))
    return slots[:n]


@given(slot_histories())
def test_the_tree_is_what_hard_attention_composes(slots: list[int]) -> None:
    S, M, M_hat = 12, [""] * 12, ["0"] * 12
    for t, y in enumerate(slots[1:], 1):
        M = [M_hat[j] if j <= y else M[j] for j in range(S)]
        v = str(t)
        for j in range(S):
            # A slot that nothing was ever written to is no constituent.
            v = v if j < y or not M[j] else f"({M[j]} {v})"
            M_hat[j] = v
    positions = ordered_memory._shift_and_reduce(slots)
    assert BeamTrees.from_merges([positions]).brackets() == [M_hat[-1]]


def test_trees_come_with_their_lengths() -> None:
    encoder, (x, is_padding) = make_encoder().eval(), random_tokens(LENGTHS, D)
    sentence, trees = encoder(x, is_padding, need_trees=True)
    torch.testing.assert_close(sentence, encoder(x, is_padding))
    assert trees.merges.shape == (len(LENGTHS), 1, max(LENGTHS) - 1)
    assert ((trees.merges[:, 0] >= 0).sum(1) + 1).tolist() == list(LENGTHS)
    for b, n in enumerate(LENGTHS):
        assert encoder(x[b : b + 1, :n], need_trees=True)[1].brackets() == trees[b].brackets()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("rates", [{}, {"dropout": 0.3, "memory_dropout": 0.2}])
def test_gpu_replays_give_the_cpus_gradients(
    rates: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_memory, "draw_seed", lambda device: torch.tensor(7, device=device))
    monkeypatch.setattr(F, "dropout", lambda x, p, training: x)  # drawn by the device's own generator
    encoder = make_encoder(d=16, slots=5, **rates)
    on_gpu = copy.deepcopy(encoder).cuda()
    for lengths in (LENGTHS, (5, 12, 1), (3,), LENGTHS):
        x, is_padding = random_tokens(lengths, 16)
        x.requires_grad_()
        there = x.detach().cuda().requires_grad_()
        ours, theirs = on_gpu(there, is_padding.cuda()), encoder(x, is_padding)
        assert_same([ours.cpu()], [theirs])
        assert_same([g.cpu() for g in gradients(ours, there, on_gpu)], gradients(theirs, x, encoder))
    assert len(on_gpu._graphs) == 6


@pytest.mark.gpu
@needs_gpu
def test_gpu_weights_may_change_between_replays() -> None:
    encoder = make_encoder().cuda()
    x = random_tokens(LENGTHS, D)[0].cuda()
    before = encoder(x)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.5)
    torch.testing.assert_close(encoder(x).cpu(), copy.deepcopy(encoder).cpu()(x.cpu()))
    assert (encoder(x) - before).abs().max() > 1e-3


@pytest.mark.gpu
@needs_gpu
def test_gpu_step_can_be_part_of_a_callers_graph() -> None:
    encoder = make_encoder(dropout=0.1).cuda()
    x = random_tokens(LENGTHS, D)[0].cuda().requires_grad_()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        encoder(x).sum().backward()
    torch.cuda.synchronize()
    x.grad = None
    encoder.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output = encoder(x)
        output.sum().backward()
    graph.replay()
    torch.cuda.synchronize()
    assert output.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
