"""CRvNN against its equations written out for one sequence, entry by entry."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from on_gpu import needs_gpu, peak_of_training
from small_encoders import assert_same, gradients, random_tokens
from torch import Tensor

from beamtree.engine.randomness import draw_keep
from beamtree.zoo import crvnn
from beamtree.zoo.crvnn import CRvNN
from beamtree.zoo.crvnn_step import neighbours

LENGTHS = (7, 1, 2, 3, 9, 4)
D = 6


def make_encoder(d: int = D, sharpness: float = 3.0, **options: float) -> CRvNN:
    torch.manual_seed(1)
    encoder = CRvNN(d, dtype=torch.float64, **options)
    with torch.no_grad():
        encoder.scorer.weight.mul_(sharpness)
        encoder.scorer.bias.fill_(6.0)  # so that sequences halt before the cap
    return encoder


def right_neighbours(e: list[Tensor]) -> list[list[Tensor]]:
    """R_ij = e_j while the existence from i to j is at most one, else what is left of one, or nothing."""
    T = len(e)
    zero = torch.zeros((), dtype=torch.float64)
    R = [[zero] * T for _ in range(T)]
    for i in range(T):
        before = zero
        for j in range(i + 1, T):
            R[i][j] = e[j] if before + e[j] <= 1 else (1 - before).clamp(min=0)
            before = before + e[j]
    return R


def reference(encoder: CRvNN, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, list[float], int]:
    """The sentence vector of one sequence x (n, d), how long its tokens existed, and the iterations made."""
    n = len(x)
    T = n + 2
    h = list(encoder.leaf(torch.stack((encoder.start, *x, encoder.end))))
    e = [torch.ones((), dtype=x.dtype)] * T
    absorbable = [0.0] + [1.0] * (n - 1) + [0.0] * 2
    lifetime = [0.0] * T

    def read(matrix: list[list[Tensor]], values: list[Tensor]) -> list[Tensor]:
        return [sum(matrix[i][j] * values[j] for j in range(T)) for i in range(T)]

    for t in range(n):
        R = right_neighbours(e)
        L = [row[::-1] for row in right_neighbours(e[::-1])[::-1]]
        left, right = read(L, h), read(R, h)
        two_left, two_right = read(L, left), read(R, right)
        windows = [torch.cat(w) for w in zip(two_left, left, h, right, two_right, strict=True)]
        s = [encoder.scorer(F.gelu(encoder.conv(window))).squeeze() for window in windows]
        top = torch.stack(s).max().clamp(min=0.0)
        alpha = [(score - top).exp() * a for score, a in zip(s, absorbable, strict=True)]
        below, above = read(L, alpha), read(R, alpha)
        pi = [
            absorbable[i] * alpha[i] / (alpha[i] + (-top).exp() + below[i] + above[i] + 4e-8)
            for i in range(T)
        ]
        lam = read(L, pi)
        parents = [encoder.cell(left[i], h[i], None if keep is None else keep[t, i]) for i in range(T)]
        h = [lam[i] * parents[i] + (1 - lam[i]) * h[i] for i in range(T)]
        e = [e[i] * (1 - pi[i]) for i in range(T)]
        lifetime = [total + existence.item() for total, existence in zip(lifetime, e, strict=True)]
        if sum(existence.item() > 0.1 for existence in e) - 2 <= 1:
            break
    return h[n], lifetime[1 : n + 1], t + 1


@pytest.mark.parametrize("halt", [True, False])
def test_outputs_and_gradients_are_those_of_the_equations(halt: bool) -> None:
    encoder, (x, is_padding) = make_encoder(halt=halt), random_tokens(LENGTHS, D)
    x.requires_grad_()
    ours = encoder(x, is_padding)
    references = [reference(encoder, x[b, :n]) for b, n in enumerate(LENGTHS)]
    theirs = torch.stack([sentence for sentence, _, _ in references])
    assert [iterations for _, _, iterations in references] == [6, 1, 1, 3, 6, 4]
    assert_same([ours], [theirs])
    assert_same(gradients(ours, x, encoder), gradients(theirs, x, encoder))


@pytest.mark.parametrize("sharpness", [20.0, 40.0, 60.0])
def test_gradients_are_the_derivative_of_the_output_however_large_the_scores(sharpness: float) -> None:
    """Beside exp of a score, 4e-8 counts as much as exp(largest score) · 4e-8: the largest has a gradient."""
    encoder, (x, is_padding) = make_encoder(sharpness=sharpness), random_tokens(LENGTHS, D)
    parameters = [encoder.scorer.weight, encoder.scorer.bias, encoder.conv.bias, encoder.leaf.linear.bias]

    def project(x: Tensor, *_: Tensor) -> Tensor:
        output = encoder(x, is_padding)
        return output.flatten() @ torch.linspace(-1, 1, output.numel(), dtype=x.dtype)

    inputs = (x.requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(project, inputs, eps=1e-5, atol=1e-7, rtol=0)


def test_a_sequence_stops_after_as_many_iterations_as_it_has_tokens() -> None:
    encoder, (x, is_padding) = make_encoder(sharpness=0.0), random_tokens(LENGTHS, D)
    with torch.no_grad():
        encoder.scorer.bias.fill_(-4.0)
    references = [reference(encoder, x[b, :n]) for b, n in enumerate(LENGTHS)]
    assert [iterations for _, _, iterations in references[2:]] == list(LENGTHS[2:])
    assert_same([encoder(x, is_padding)], [torch.stack([sentence for sentence, _, _ in references])])


def test_dropout_is_on_the_cells_hidden_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (x, is_padding) = make_encoder(dropout=0.3).train(), random_tokens(LENGTHS, D)
    x.requires_grad_()
    seed = torch.tensor(5)
    monkeypatch.setattr(crvnn, "draw_seed", lambda device: seed)
    ours = encoder(x, is_padding)
    time, token = torch.arange(9)[:, None], torch.arange(11)
    theirs = torch.stack(
        [
            reference(encoder, x[b, :n], draw_keep(seed, time, torch.tensor(b), token, 24, 0.3, x.dtype))[0]
            for b, n in enumerate(LENGTHS)
        ]
    )
    assert_same([ours], [theirs])
    assert_same(gradients(ours, x, encoder), gradients(theirs, x, encoder))
    monkeypatch.undo()
    assert not torch.equal(encoder(x, is_padding), encoder(x, is_padding))
    encoder.eval()
    assert torch.equal(encoder(x, is_padding), encoder(x, is_padding))


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.0, 1.0]), min_size=1, max_size=8))
def test_neighbours_are_the_nearest_whole_token_on_either_side(existence: list[float]) -> None:
    e = torch.tensor(existence, dtype=torch.float64)
    left, right = neighbours(e.unsqueeze(0))
    torch.testing.assert_close(
        right[0], torch.stack([torch.stack(row) for row in right_neighbours(list(e))]), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(left.flip(1, 2), neighbours(e.flip(0).unsqueeze(0))[1], atol=1e-12, rtol=0)
    to_the_right = e.sum() - e.cumsum(0)
    torch.testing.assert_close(right[0].sum(1), to_the_right.clamp(max=1), atol=1e-12, rtol=0)


def test_neighbours_stay_exact_in_long_rows_of_single_precision() -> None:
    torch.manual_seed(0)
    e = torch.rand(1, 1500)
    expected = neighbours(e.double())
    for ours, exact in zip(neighbours(e), expected, strict=True):
        assert (ours - exact).abs().max() < 2e-7


def test_looking_seldom_for_the_end_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (x, is_padding) = make_encoder(), random_tokens(LENGTHS, D)
    x.requires_grad_()
    output = encoder(x, is_padding)
    often = [output, *gradients(output, x, encoder)]
    monkeypatch.setattr(crvnn, "_looks_every", lambda x: 4)
    output = encoder(x, is_padding)
    assert_same([output, *gradients(output, x, encoder)], often, 1e-12)


def test_a_wider_row_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, (x, is_padding) = make_encoder(), random_tokens(LENGTHS, D)
    x.requires_grad_()
    output, trees = encoder(x, is_padding, need_trees=True)
    narrow = [output, *gradients(output, x, encoder)]
    monkeypatch.setattr(crvnn, "_row_width", lambda B, n, on_gpu: (16, False))
    output, wide_trees = encoder(x, is_padding, need_trees=True)
    assert_same([output, *gradients(output, x, encoder)], narrow, 1e-12)
    assert torch.equal(trees.merges, wide_trees.merges)


def test_small_rows_are_replayed_on_a_gpu_and_share_widths() -> None:
    assert crvnn._row_width(1, 225, True) == (240, True)
    assert crvnn._row_width(1, 238, True) == (240, True)
    assert crvnn._row_width(1, 225, False) == (227, False)
    assert crvnn._row_width(128, 100, True) == (112, True)
    assert crvnn._row_width(256, 100, True) == (102, False)
    assert crvnn._row_width(1, 3000, True) == (3002, False)


def test_training_keeps_nothing_that_grows_faster_than_the_vectors() -> None:
    encoder = make_encoder(d=4, halt=False)
    kept = []
    for n in (10, 20, 40):
        sizes: dict[int, int] = {}

        def note(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            encoder(torch.randn(1, n, 4, dtype=torch.float64)).sum()
        kept.append(sum(sizes.values()))
    assert kept[2] - kept[1] < 4.2 * (kept[1] - kept[0])
    assert kept[2] < 40 * 42 * (4 + 2) + 5000


def test_sharp_scores_stay_finite() -> None:
    encoder, (x, is_padding) = make_encoder(sharpness=1e5).float(), random_tokens(LENGTHS, D)
    x = x.float().requires_grad_()
    output = encoder(x, is_padding)
    assert output.isfinite().all()
    for gradient in gradients(output, x, encoder):
        assert gradient.isfinite().all()


def test_trees_absorb_the_shortest_lived_first() -> None:
    lifetime = torch.tensor([[3.0, 1.0, 2.0, 9.0], [1.0, 1.0, 5.0, 0.0], [7.0, 0.0, 0.0, 0.0]])
    trees = crvnn._absorption_trees(lifetime, torch.tensor([4, 3, 1]))
    assert trees.merges[:, 0].tolist() == [[1, 1, 0], [0, 0, -1], [-1, -1, -1]]
    assert trees.brackets() == ["(0 ((1 2) 3))", "((0 1) 2)", "0"]


def test_trees_come_from_the_tokens_lifetimes() -> None:
    encoder, (x, is_padding) = make_encoder().eval(), random_tokens(LENGTHS, D)
    sentence, trees = encoder(x, is_padding, need_trees=True)
    torch.testing.assert_close(sentence, encoder(x, is_padding))
    assert trees.merges.shape == (len(LENGTHS), 1, max(LENGTHS) - 1)
    for b, n in enumerate(LENGTHS):
        lifetime = reference(encoder, x[b, :n])[1]
        alive, positions = list(range(n)), []
        for token in sorted(range(n - 1), key=lifetime.__getitem__):
            positions.append(alive.index(token))
            alive.remove(token)
        assert trees.merges[b, 0, : n - 1].tolist() == positions
        assert (trees.merges[b, 0, n - 1 :] == -1).all()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("halt", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gpu_replays_give_the_cpus_gradients(
    halt: bool, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crvnn, "draw_seed", lambda device: torch.tensor(7, device=device))
    encoder = make_encoder(d=16, halt=halt, dropout=dropout)
    on_gpu = copy.deepcopy(encoder).cuda()
    for lengths in (LENGTHS, (5, 13, 1), (3,), (20,), LENGTHS):
        x, is_padding = random_tokens(lengths, 16)
        x.requires_grad_()
        there = x.detach().cuda().requires_grad_()
        ours, theirs = on_gpu(there, is_padding.cuda()), encoder(x, is_padding)
        assert_same([ours.cpu()], [theirs])
        assert_same([g.cpu() for g in gradients(ours, there, on_gpu)], gradients(theirs, x, encoder))
    assert len(on_gpu._graphs) == 8
    monkeypatch.setattr(crvnn, "REPLAYED_TOKENS", 0)
    assert_same([on_gpu(there, is_padding.cuda()).cpu()], [theirs])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.slow
def test_a_training_step_at_225_tokens_takes_a_quarter_of_the_published_codes_memory() -> None:
    x = torch.randn(1, 225, 128, device="cuda")
    assert peak_of_training(lambda: CRvNN(128, halt=False, dropout=0.1, device="cuda"), x) < 1.12 / 4
