"""Stacks of unlike layers, and heads for every token."""

import copy

import pytest
import torch
import torch.nn.functional as F
from on_gpu import needs_gpu
from torch import nn

from beamtree import BeamTreeEncoder, BeamtreeError, TreeTransformerLayer
from beamtree.nn.heads import TaggerHead, tag_accuracy, tag_loss
from beamtree.nn.stacks import HybridStack

D = 8
STACKS = [["tree"], ["attention"], ["ssm"], ["ssm", "tree", "attention"], ["tree", "attention", "tree"]]


def make(layers: list, **options) -> HybridStack:
    torch.manual_seed(0)
    return HybridStack(layers, D, **{"dtype": torch.float64} | options)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("layers", STACKS, ids="-".join)
def test_padding_is_carried_through_every_layer(layers, training):
    stack = make(layers).train(training)
    for module in stack.modules():
        if hasattr(module, "stochastic"):
            module.stochastic = False
    lengths = torch.tensor([6, 1, 3])
    is_padding = torch.arange(6) >= lengths[:, None]
    x = torch.randn(3, 6, D, dtype=torch.float64).masked_fill(is_padding.unsqueeze(-1), torch.nan)
    x.requires_grad_()
    found = stack(x, is_padding)
    assert found[is_padding].eq(0).all()
    for b, length in enumerate(lengths):
        torch.testing.assert_close(found[b, :length], stack(x[b : b + 1, :length])[0])
    found.square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in stack.parameters())


def test_a_stack_is_its_layers_in_turn_and_a_norm():
    stack = make(["ssm", "tree", "attention"]).eval()
    x = torch.randn(2, 5, D, dtype=torch.float64)
    torch.testing.assert_close(stack(x), nn.Sequential(*stack.layers, stack.norm)(x))


def test_a_stack_in_half_precision_stays_near():
    stack = make(["ssm", "attention"], dtype=torch.float32).eval()
    x = torch.randn(2, 5, D)
    found = copy.deepcopy(stack).bfloat16()(x.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), stack(x), rtol=0.1, atol=0.1)


def test_options_reach_their_layers():
    stack = make(
        ["tree", "attention", "ssm"],
        beam_size=2,
        heads=2,
        feedforward_size=5,
        state_size=3,
        bidirectional=False,
        dropout=0.25,
    )
    tree, attention, ssm = stack.layers
    assert (tree.source.beam_size, tree.source.cell.dropout, tree.residual) == (2, 0.25, True)
    assert (attention.self_attn.num_heads, attention.linear1.out_features) == (2, 5)
    assert (attention.dropout.p, attention.norm_first) == (0.25, True)
    assert ssm.space.frequency.shape == (1, D, 3)
    assert ssm.dropout.p == 0.25


def test_own_layers_get_the_mask_and_unknown_names_are_refused():
    class Own(nn.Module):
        def forward(self, x, key_padding_mask):
            self.seen = key_padding_mask
            return 2 * x

    own = Own()
    stack = make([own])
    x, is_padding = torch.randn(1, 3, D, dtype=torch.float64), torch.tensor([[False, False, True]])
    expected = F.layer_norm(2 * x, (D,)).masked_fill(is_padding.unsqueeze(-1), 0)
    torch.testing.assert_close(stack(x, is_padding), expected)
    assert own.seen is is_padding
    with pytest.raises(
        BeamtreeError, match="there is no layer 'lstm': use tree, attention, ssm or your own module"
    ):
        make(["lstm"])
    with pytest.raises(ValueError, match="key_padding_mask must be a bool tensor"):
        stack(x, is_padding.float())


def test_what_is_no_list_of_layers_from_tokens_to_tokens_is_refused():
    for layers in ("tree", 8, {"tree"}, []):
        with pytest.raises(ValueError, match="layers must be a non-empty list of names and modules, got"):
            HybridStack(layers, D)
    with pytest.raises(ValueError, match="heads must divide d_model = 9, got 4"):
        HybridStack(["attention"], 9)
    x = torch.randn(2, 5, D)
    encoder = BeamTreeEncoder(D)
    for block in (HybridStack([encoder], D), TreeTransformerLayer(encoder)):
        with pytest.raises(ValueError, match=r"BeamTreeEncoder must map tokens to tokens, .* got \(2, 8\)"):
            block(x)


def test_a_tagger_gives_every_token_classes_and_counts_only_what_it_should():
    torch.manual_seed(0)
    head = TaggerHead(D, 3)
    tokens = torch.randn(2, 4, D)
    logits = head(tokens)
    assert logits.shape == (2, 4, 3)
    tags = torch.randint(3, (2, 4))
    counted = torch.tensor([[True, True, False, False], [True, False, False, False]])
    expected = [F.cross_entropy(logits[b, i], tags[b, i]) for b, i in ((0, 0), (0, 1), (1, 0))]
    torch.testing.assert_close(tag_loss(logits, tags, counted), torch.stack(expected).mean())
    assert tag_loss(logits, tags, torch.zeros_like(counted)) == 0
    best = logits.argmax(-1)
    assert tag_accuracy(logits, best, counted) == 1.0
    alone = torch.zeros_like(counted)
    alone[0, 0] = True
    torch.testing.assert_close(tag_loss(logits, tags, alone), expected[0])
    assert tag_loss(logits.bfloat16(), tags, alone).dtype == torch.float32
    assert tag_accuracy(logits, best, alone) == 1.0
    best[0, 0] = (best[0, 0] + 1) % 3
    best[1, 3] = (best[1, 3] + 1) % 3
    assert tag_accuracy(logits, best, counted) == pytest.approx(2 / 3)
    dropped = TaggerHead(D, 3, dropout=1.0)
    torch.testing.assert_close(dropped(tokens), dropped.out.bias.expand(2, 4, 3))
    assert not torch.equal(dropped.eval()(tokens), dropped.out.bias.expand(2, 4, 3))
    with pytest.raises(ValueError, match="classes must be at least 2"):
        TaggerHead(D, 1)


@pytest.mark.gpu
@needs_gpu
def test_devices_agree():
    stack = make(["ssm", "tree", "attention"]).eval()
    x = torch.randn(2, 9, D, dtype=torch.float64)
    torch.testing.assert_close(copy.deepcopy(stack).cuda()(x.cuda()).cpu(), stack(x), rtol=0, atol=1e-8)


@pytest.mark.parametrize("measure", [tag_loss, tag_accuracy])
def test_which_tags_count_is_said_by_a_bool_mask_alone(measure):
    logits, tags = torch.randn(2, 4, 3), torch.randint(3, (2, 4))
    with pytest.raises(ValueError, match=r"is_counted must be a bool tensor, True at tokens .* torch.int64"):
        measure(logits, tags, torch.ones(2, 4).long())
    with pytest.raises(ValueError, match=r"is_counted must have shape \(B, n\) = \(2, 4\), got \(2,\)"):
        measure(logits, tags, torch.ones(2, dtype=torch.bool))


def test_a_block_in_a_transformer_never_gets_a_mask_of_numbers():
    class Zeroing(nn.Module):
        def forward(self, x, mask):
            return x * ~mask.unsqueeze(-1)

    layer = TreeTransformerLayer(Zeroing())
    with pytest.raises(ValueError, match=r"src_key_padding_mask must be a bool tensor, .* got torch.int64"):
        layer(torch.randn(2, 4, D), src_key_padding_mask=torch.zeros(2, 4).long())
