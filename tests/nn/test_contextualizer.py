"""The contextualiser over every tree source, against trees replayed plainly; and as a Transformer layer."""

import copy

import pytest
import torch
import torch.nn.functional as F
from on_gpu import needs_gpu, peak_of_training
from small_encoders import stirred, trees_to_follow, zero_padded_tokens
from torch import Tensor, nn

from beamtree import create_encoder
from beamtree.data.listops.language import gold_merges
from beamtree.nn.contextualizer import BeamTreeContextualizer
from beamtree.nn.stacks import TreeTransformerLayer
from beamtree.trees.beam_trees import BeamTrees

D = 8
LENGTHS = [9, 1, 2, 3, 6]
SOURCES = ("ebt-grc", "bt-grc", "egt-grc", "gt-grc", "balanced-grc", "gold-grc")


def make(source: str = "ebt-grc", *, dropout: float = 0.0, **options) -> BeamTreeContextualizer:
    torch.manual_seed(1)
    given = create_encoder(source, D, dropout=dropout, dtype=torch.float64)
    block = stirred(BeamTreeContextualizer(D, source=given, dtype=torch.float64, **options))
    with torch.no_grad():  # as drawn, attention is nearly uniform and scores nearly equal
        block.parent_gau.z_scale.normal_()
        for parameter in getattr(given, "scorer", nn.Identity()).parameters():
            parameter.mul_(4)
    return block


def run(block: nn.Module, x: Tensor, is_padding: Tensor | None = None, **options):
    """Call it; a source that follows given trees gets right-branching ones."""
    return block(x, is_padding, **trees_to_follow(block.source, x, is_padding), **options)


def replay(leaves: Tensor, merges: list[int], source: nn.Module) -> tuple[list[Tensor], Tensor]:
    """The nodes (d,) of one tree over leaves (n, d), and its log-score, by autograd through everything."""
    cell, scorer = source.cell, getattr(source, "scorer", None)
    greedy = type(source).__name__ in ("EfficientGumbelTreeGRC", "GumbelTreeGRC")
    entangled = scorer is not None and hasattr(scorer, "weight")
    live, nodes, score = leaves, [], leaves.new_zeros(())
    for place in merges:
        left, right = live[:-1], live[1:]
        hard = F.one_hot(torch.tensor(place), len(left)).double()
        if scorer is not None and len(left) > 1:
            logits = scorer(cell(left, right)) if entangled else scorer(left, right)
            score = score + logits.log_softmax(0)[place]
            chance = logits.softmax(0)
            choice = hard + chance - chance.detach() if greedy else hard
        else:
            choice = hard
        if greedy and not entangled:
            parents = cell(choice @ left, choice @ right).expand_as(left)
        else:
            parents = cell(left, right)
        nodes.append(parents[place])
        passed, choice = choice.cumsum(0).unsqueeze(1), choice.unsqueeze(1)
        live = choice * parents + (1 - passed) * left + (passed - choice) * right
    return nodes, leaves.new_zeros(()) if greedy else score


def contextualize_plainly(block: BeamTreeContextualizer, x: Tensor, merges: Tensor) -> Tensor:
    """One sequence x (n, d) with trees merges (K, n−1)."""
    leaves = block.source.leaf(x)
    tokens, scores = [], []
    for tree in merges:
        nodes, score = replay(leaves, tree.tolist(), block.source)
        stacked = torch.stack(nodes) if nodes else leaves[:0]
        trees = BeamTrees.from_merges(tree[None])
        tokens.append(block.parent_gau(leaves[None], stacked[None, None], trees, refinements=2)[0, 0])
        scores.append(score)
    return torch.einsum("k,knd->nd", torch.stack(scores).softmax(0), torch.stack(tokens))


@pytest.mark.parametrize("source", SOURCES)
def test_tokens_and_all_gradients_are_those_of_the_trees_replayed_plainly(source):
    block = make(source).eval()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    x.requires_grad_()
    cotangent = torch.randn_like(x)
    tokens, trees = run(block, x, is_padding, need_trees=True)
    expected = torch.zeros_like(x)
    for b, length in enumerate(LENGTHS):
        merges = trees.merges[b, trees.alive[b], : length - 1]
        expected[b, :length] = contextualize_plainly(block, x[b, :length], merges)
    torch.testing.assert_close(tokens, expected)
    wanted = {"x": x} | dict(block.named_parameters())
    found = torch.autograd.grad((tokens * cotangent).sum(), list(wanted.values()))
    plain = torch.autograd.grad((expected * cotangent).sum(), list(wanted.values()), allow_unused=True)
    for name, a, b in zip(wanted, found, plain, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b, msg=name)


@pytest.mark.parametrize("source", ["ebt-grc", "bt-grc", "balanced-grc", "gold-grc"])
def test_under_noise_and_dropout_the_gradient_is_the_slope(source):
    """For one draw of both; straight-through trees have no slope of their own."""
    block = make(source, dropout=0.3).train()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    direction, cotangent = torch.randn(2, *x.shape, dtype=torch.float64)
    x.requires_grad_()

    def loss(given: Tensor) -> Tensor:
        torch.manual_seed(5)
        return (run(block, given, is_padding) * cotangent).sum()

    (grad,) = torch.autograd.grad(loss(x), x)
    slope = (loss(x + 1e-6 * direction) - loss(x - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((grad * direction).sum(), slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("source", SOURCES)
def test_a_sequence_gives_the_same_alone_and_in_a_padded_batch(source, residual):
    block = make(source, residual=residual).eval()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    together = run(block, x, is_padding)
    assert together.shape == x.shape
    assert together[is_padding].eq(0).all()
    for b, length in enumerate(LENGTHS):
        torch.testing.assert_close(together[b, :length], run(block, x[b : b + 1, :length])[0])
    wide = run(block, F.pad(x, (0, 0, 0, 3)), F.pad(is_padding, (0, 3), value=True))
    torch.testing.assert_close(wide[:, :9], together)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("source", SOURCES)
def test_nan_in_padding_has_no_effect_in_training(source, residual):
    block = make(source, dropout=0.2, residual=residual).train()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    dirty = x.masked_fill(is_padding.unsqueeze(-1), torch.nan).requires_grad_()
    torch.manual_seed(3)
    expected = run(block, x, is_padding)
    torch.manual_seed(3)
    found = run(block, dirty, is_padding)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    assert dirty.grad[is_padding].eq(0).all()
    assert all(parameter.grad.isfinite().all() for parameter in block.parameters())


@pytest.mark.parametrize(("given", "used"), [(None, 0.3), (0.0, 0.0), (0.1, 0.1)])
def test_attention_drops_out_at_its_own_rate_where_it_has_one(given: float | None, used: float) -> None:
    assert BeamTreeContextualizer(D, dropout=0.3, attention_dropout=given).parent_gau.dropout.p == used


@pytest.mark.parametrize("lengths", [[1], [1, 1], [2], [3, 1]])
@pytest.mark.parametrize("source", SOURCES)
def test_every_parameter_gets_a_gradient_from_one_token_on(source, lengths):
    block = make(source).train()
    x, is_padding = zero_padded_tokens(lengths, D)
    run(block, F.pad(x, (0, 0, 0, 2)), F.pad(is_padding, (0, 2), value=True)).sum().backward()
    assert [name for name, p in block.named_parameters() if p.grad is None] == []
    block.zero_grad()
    run(block, x, is_padding).sum().backward()
    assert [name for name, p in block.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("source", SOURCES)
def test_a_lone_token_meets_no_key_and_passes_the_gate_alone(source):
    block = make(source, refinements=1).eval()
    x = torch.randn(1, 1, D, dtype=torch.float64)
    leaf, unit = block.source.leaf(x), block.parent_gau
    o = unit.out.bias.expand(1, 1, D)
    g = unit.gate(torch.cat((o, leaf), -1)).sigmoid()
    torch.testing.assert_close(run(block, x), g * o + (1 - g) * leaf)


def test_a_residual_block_adds_to_what_it_normalises():
    block = make(residual=True).eval()
    plain = make(residual=False).eval()
    plain.load_state_dict({k: v for k, v in block.state_dict().items() if not k.startswith("norm.")})
    with torch.no_grad():
        block.norm.weight.normal_()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    read = F.layer_norm(x, (D,), block.norm.weight, block.norm.bias)
    expected = (x + plain(read, is_padding)).masked_fill(is_padding.unsqueeze(-1), 0)
    torch.testing.assert_close(block(x, is_padding), expected)


def test_the_default_source_is_a_beam_tree_encoder_with_the_options_given():
    block = BeamTreeContextualizer(D, input_size=5, beam_size=3, slice_size=4, dropout=0.1, stochastic=False)
    encoder = block.source
    assert (encoder.beam_size, encoder.scorer.slice_size, encoder.cell.dropout) == (3, 4, 0.1)
    assert (block.parent_gau.dropout.p, encoder.stochastic) == (0.1, False)
    tokens, trees = block(torch.randn(2, 4, 5), need_trees=True)
    assert tokens.shape == (2, 4, D)
    assert trees.merges.shape == (2, 3, 3)
    assert "refinements=2" in repr(block)


def test_ebt_follows_given_trees_as_gold_does():
    tokens = ["[MAX", "2", "[MIN", "4", "7", "]", "0", "]"]
    merges = torch.tensor([gold_merges(tokens)])
    x = torch.randn(1, len(tokens), D, dtype=torch.float64)
    gold, beam = make("gold-grc").eval(), make("ebt-grc").eval()
    beam.load_state_dict(gold.state_dict(), strict=False)
    torch.testing.assert_close(beam(x, merges=merges), gold(x, merges=merges))


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="source must be an encoder with inner nodes, CRvNN has none"):
        BeamTreeContextualizer(D, source=create_encoder("crvnn", D))
    with pytest.raises(ValueError, match=r"source\.d_model is 4, expected 8"):
        BeamTreeContextualizer(D, source=create_encoder("egt-grc", 4))
    with pytest.raises(ValueError, match="residual needs tokens of width d_model = 8, got 5"):
        BeamTreeContextualizer(D, input_size=5, residual=True)
    with pytest.raises(ValueError, match="beam_size, slice_size and stochastic belong to the default source"):
        BeamTreeContextualizer(D, beam_size=3, source=create_encoder("egt-grc", D))
    with pytest.raises(ValueError, match="refinements must be at least 1"):
        BeamTreeContextualizer(D, refinements=0)
    x = torch.randn(1, 3, D, dtype=torch.float64)
    for source in ("bt-grc", "egt-grc", "gt-grc", "balanced-grc"):
        with pytest.raises(ValueError, match="merges must be left out"):
            make(source)(x, merges=torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="merges must hold the trees to follow"):
        make("gold-grc")(x)
    for source in ("bt-grc", "gt-grc"):
        faithful = create_encoder(source, D, mode="faithful", dtype=torch.float64)
        with pytest.raises(ValueError, match="inner nodes in training need mode='cached'"):
            BeamTreeContextualizer(D, source=faithful, dtype=torch.float64)(x)
    with pytest.raises(ValueError, match="BT-GRC OS has no inner nodes in training"):
        make("bt-grc-os").train()(x)
    with pytest.raises(ValueError, match=r"x must have shape \(B, n, 8\)"):
        make(residual=True)(x[..., :5])


def test_blocks_stack_in_a_plain_sequence_with_pytorch_layers():
    torch.manual_seed(0)
    stack = nn.Sequential(
        BeamTreeContextualizer(D, residual=True),
        nn.TransformerEncoderLayer(D, 2, 16, batch_first=True, norm_first=True),
        BeamTreeContextualizer(D, residual=True),
    )
    x = torch.randn(2, 5, D)
    stack(x).sum().backward()
    assert all(parameter.grad is not None for parameter in stack.parameters())


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer_encoder_takes_the_block_as_its_layer(batch_first):
    block = make(residual=True).eval()
    layer = TreeTransformerLayer(block, batch_first=batch_first)
    stack = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(D).double(), enable_nested_tensor=False).eval()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    expected = stack.norm(block(block(x, is_padding), is_padding))
    given = x if batch_first else x.transpose(0, 1)
    found = stack(given, src_key_padding_mask=is_padding)
    torch.testing.assert_close(found if batch_first else found.transpose(0, 1), expected)
    torch.testing.assert_close(layer(x[0]), block(x[:1])[0])
    torch.testing.assert_close(layer(x[4], src_key_padding_mask=is_padding[4]), block(x, is_padding)[4])


def test_a_transformer_layer_of_trees_refuses_what_it_cannot_do():
    stack = nn.TransformerEncoder(TreeTransformerLayer(make()), 1, enable_nested_tensor=False)
    x, _ = zero_padded_tokens([4], D)
    causal = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    with pytest.raises(ValueError, match="is_causal must be False: a tree spans the whole sequence"):
        stack(x, mask=causal, is_causal=True)
    with pytest.raises(ValueError, match="src_mask must be None"):
        TreeTransformerLayer(make())(x, src_mask=causal)
    with pytest.raises(ValueError, match="src must have 2 or 3 dimensions"):
        TreeTransformerLayer(make())(x[0, 0])
    large_negative = torch.tensor([[0.0, 0.0, -1e9, -1e9]], dtype=torch.float64)
    with pytest.raises(
        ValueError, match="a floating-point src_key_padding_mask must be 0 at tokens and -inf"
    ):
        TreeTransformerLayer(make())(x, src_key_padding_mask=large_negative)


def test_half_precision_stays_near_and_passes_gradients():
    torch.manual_seed(0)
    block = BeamTreeContextualizer(D, residual=True).eval()
    x = torch.randn(2, 6, D)
    narrow = copy.deepcopy(block).bfloat16()
    found = narrow(x.bfloat16())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), block(x), rtol=0.2, atol=0.2)
    found.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in narrow.parameters())


def test_autocast_gives_tokens_in_the_type_of_the_parameters():
    torch.manual_seed(0)
    block = BeamTreeContextualizer(D, residual=True).eval()
    x = torch.randn(2, 6, D)
    with torch.autocast("cpu", torch.bfloat16):
        found = block(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, block(x), rtol=0.2, atol=0.2)


def test_a_second_derivative_is_refused():
    x = torch.randn(1, 4, D, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(make()(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad.sum().backward()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("source", SOURCES)
def test_devices_agree(source):
    block = make(source).eval()
    on_gpu = copy.deepcopy(block).cuda()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    results = []
    for device, model in (("cpu", block), ("cuda", on_gpu)):
        given = x.detach().to(device).requires_grad_()
        options = {}
        if source == "gold-grc":
            lengths = torch.tensor(LENGTHS)[:, None]
            options["merges"] = (lengths - 2 - torch.arange(8)).clamp(min=-1).to(device)
        tokens = model(given, is_padding.to(device), **options)
        tokens.square().sum().backward()
        results.append([tokens.cpu(), given.grad.cpu(), *(p.grad.cpu() for p in model.parameters())])
    torch.testing.assert_close(*results, rtol=0, atol=1e-8)


@pytest.mark.gpu
@needs_gpu
def test_a_training_step_at_b32_n128_d300_takes_under_3_gib():
    x = torch.randn(32, 128, 300, device="cuda")
    assert peak_of_training(lambda: BeamTreeContextualizer(300, dropout=0.1, device="cuda"), x) < 3
