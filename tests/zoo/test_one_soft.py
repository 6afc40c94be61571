"""BT-GRC OS: the soft top-k of training, against its definition written out candidate by candidate."""

import pytest
import torch
import torch.nn.functional as F
from small_encoders import gradients, random_tokens
from torch import Tensor, nn

from beamtree import create_encoder

D = 6
LENGTHS = [8, 1, 2, 3, 4, 6, 8]


def make(name: str = "bt-grc-os", **options) -> nn.Module:
    torch.manual_seed(0)
    encoder = create_encoder(name, D, dtype=torch.float64, **options)
    encoder.scorer.weight.data *= 2
    return encoder


def make_input(lengths: list[int] = LENGTHS) -> tuple[Tensor, Tensor]:
    x, is_padding = random_tokens(lengths, D, seed=1)
    return x.requires_grad_(), is_padding


def merge(old: Tensor, new: Tensor, choice: Tensor) -> Tensor:
    """h'_j = y_j·p_j + (1 − c_j)·h_j + (c_j − y_j)·h_{j+1} on one sequence."""
    choice = choice.unsqueeze(-1)
    passed = choice.cumsum(0)
    return choice * new + (1 - passed) * old[:-1] + (passed - choice) * old[1:]


def one_soft_alone(encoder: nn.Module, x: Tensor, K: int) -> Tensor:
    """One unpadded sequence (n, d), every candidate an object of its own."""
    beams = [(torch.zeros((), dtype=x.dtype), encoder.leaf(x))]
    while len(beams[0][1]) > 1:
        candidates = []
        for score, nodes in beams:
            parents = encoder.cell(nodes[:-1], nodes[1:])
            logits = encoder.scorer(parents)
            log_probs = logits.log_softmax(0)
            for j in logits.sort(descending=True, stable=True).indices[:K]:
                choice = F.one_hot(j, len(logits)).to(x.dtype)
                candidates.append((score + log_probs[j], nodes, parents, choice))
        candidates.sort(key=lambda candidate: -candidate[0].item())
        hard, rest = candidates[: K - 1], candidates[K - 1 :]
        if len(candidates) <= K:
            hard, rest = candidates, []
        beams = [(score, merge(nodes, parents, choice)) for score, nodes, parents, choice in hard]
        if rest:
            weights = torch.stack([candidate[0] for candidate in rest]).softmax(0)
            score, nodes, parents, choice = (
                sum(w * part for w, part in zip(weights, parts, strict=True))
                for parts in zip(*rest, strict=True)
            )
            beams.append((score, merge(nodes, parents, choice)))
    weights = torch.stack([score for score, _ in beams]).softmax(0)
    return sum(w * nodes[0] for w, (_, nodes) in zip(weights, beams, strict=True))


@pytest.mark.parametrize("mode", ["cached", "faithful"])
@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_training_equals_the_definition_in_a_padded_batch(K, mode):
    encoder = make(beam_size=K, mode=mode).train()
    encoder._warned = True
    x, is_padding = make_input()
    found = encoder(x, is_padding)
    expected = torch.stack([one_soft_alone(encoder, x[b, :length], K) for b, length in enumerate(LENGTHS)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        gradients(found, x, encoder), gradients(expected, x, encoder), rtol=0, atol=1e-9
    )


def test_evaluation_is_bt_grc():
    soft, hard = make().eval(), make("bt-grc").eval()
    x, is_padding = make_input()
    (one, trees), (other, same) = soft(x, is_padding, need_trees=True), hard(x, is_padding, need_trees=True)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(trees.merges, same.merges)
    assert not torch.allclose(soft.train()(x, is_padding), one)


def test_a_beam_that_is_dropped_still_gets_gradient():
    x = make_input([6] * 20)[0]
    by_beam = []
    for name in ("bt-grc-os", "bt-grc"):
        encoder = make(name, beam_size=2, mode="faithful", stochastic=False).train()
        calls = []
        propose = encoder.propose
        encoder.propose = lambda *pairs, calls=calls, propose=propose: (
            calls.append(propose(*pairs)) or calls[-1]
        )
        root = encoder(x)
        # The step in which two beams stand for the first time; its parents' gradients.
        by_beam.append(torch.autograd.grad(root[:, 0].sum(), calls[1][0])[0].abs().amax((2, 3)))
    soft, hard = by_beam  # (20, 2)
    assert (soft > 0).all()
    assert (hard == 0).any()


def test_a_hard_beam_makes_two_candidates_a_step_and_the_soft_beam_all():
    encoder = make(beam_size=3).train()
    rows = []
    propose = encoder.propose
    encoder.propose = lambda left, right: rows.append(left[0].shape[:-1].numel()) or propose(left, right)
    encoder(make_input([8])[0])
    assert rows == [7, 3 * 2, *(2 * 2 + pairs for pairs in range(5, 0, -1))]  # soft from the second step on


def test_noise_is_off_unless_asked_for():
    encoder = make().train()
    x, is_padding = make_input()
    assert torch.equal(encoder(x, is_padding), encoder(x, is_padding))
    noisy = make(stochastic=True, beam_size=3).train()
    assert not torch.equal(noisy(x, is_padding), noisy(x, is_padding))


def test_trees_of_training_show_the_soft_beam_as_its_heaviest_part():
    encoder = make().train()
    x, is_padding = make_input()
    vector, trees = encoder(x, is_padding, need_trees=True)
    torch.testing.assert_close(vector, encoder(x, is_padding))
    assert trees.alive.sum(1).tolist() == [5, 1, 1, 2, 5, 5, 5]
    assert (trees.merges[0] >= 0).all()
    torch.testing.assert_close(trees.weights.sum(1), torch.ones(len(LENGTHS), dtype=torch.float64))
