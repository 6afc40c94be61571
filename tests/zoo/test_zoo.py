"""What every encoder of the tables promises, whatever its idea; one claim over all names."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_encoders import stirred, trees_to_follow, zero_padded_tokens
from torch import Tensor, nn

from beamtree import BeamtreeError, BeamTrees, create_encoder
from beamtree.trees.constraints import check_merges
from beamtree.zoo.by_name import compared_encoder_names, encoder_names

NAMES = (*encoder_names(), *compared_encoder_names())
WITHOUT_TREE = ("bilstm", "transformer", "universal-transformer", "rotary-transformer", "s4d", "mamba")
TWICE_DIFFERENTIABLE = (*WITHOUT_TREE, "bt-grc-os", "recurrent-grc", "balanced-grc")
LENGTHS = [8, 1, 2, 3, 5, 8, 1]
D = 8


def make(name: str, **options) -> nn.Module:
    torch.manual_seed(1)
    return stirred(create_encoder(name, D, **{"dtype": torch.float64} | options))


def encode(encoder: nn.Module, x: Tensor, is_padding: Tensor | None = None, **options):
    """Call it; an encoder that follows given trees gets right-branching ones."""
    return encoder(x, key_padding_mask=is_padding, **trees_to_follow(encoder, x, is_padding), **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_gives_the_same_alone_and_in_a_padded_batch(name):
    encoder = make(name).eval()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    together = encode(encoder, x, is_padding)
    assert together.shape == (len(LENGTHS), D)
    for b, length in enumerate(LENGTHS):
        alone = encode(encoder, x[b : b + 1, :length])
        torch.testing.assert_close(together[b : b + 1], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_columns_of_padding_alone_change_nothing(name):
    encoder = make(name).eval()
    x, is_padding = zero_padded_tokens([3, 1, 2], D)
    expected = encode(encoder, x, is_padding)
    wide, wide_padding = F.pad(x, (0, 0, 0, 4)), F.pad(is_padding, (0, 4), value=True)
    if name in WITHOUT_TREE:
        found = encode(encoder, wide, wide_padding)
    else:
        found, trees = encode(encoder, wide, wide_padding, need_trees=True)
        assert trees.merges.shape[-1] == 6
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_batch_mates_and_their_order_do_not_matter(name):
    encoder = make(name).eval()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    expected = encode(encoder, x, is_padding)[order]
    torch.testing.assert_close(encode(encoder, x[order], is_padding[order]), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_padding_has_no_effect_and_leaves_no_gradient(name):
    encoder = make(name, dropout=0.2).train()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    dirty = x.masked_fill(is_padding.unsqueeze(-1), torch.nan).requires_grad_()
    torch.manual_seed(3)
    expected = encode(encoder, x, is_padding)
    torch.manual_seed(3)
    found = encode(encoder, dirty, is_padding)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    assert dirty.grad[is_padding].eq(0).all()
    assert dirty.grad.isfinite().all()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", NAMES)
def test_training_drops_out_anew_and_evaluation_leaves_its_random_numbers_alone(name):
    encoder, (x, is_padding) = make(name, dropout=0.5).train(), zero_padded_tokens(LENGTHS, D)
    encoder.stochastic = False
    assert not torch.equal(encode(encoder, x, is_padding), encode(encoder, x, is_padding))
    encoder.eval()
    before = torch.get_rng_state()
    assert torch.equal(encode(encoder, x, is_padding), encode(encoder, x, is_padding))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT_TREE])
def test_trees_are_whole_binary_trees_and_do_not_change_the_vector(name):
    encoder = make(name).eval()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    vector, trees = encode(encoder, x, is_padding, need_trees=True)
    assert isinstance(trees, BeamTrees)
    torch.testing.assert_close(vector, encode(encoder, x, is_padding))
    check_merges(trees.merges[:, 0], torch.tensor(LENGTHS))
    torch.testing.assert_close(trees.weights.sum(1), torch.ones(len(LENGTHS)).to(trees.weights))
    assert trees.brackets()[2] == "(0 1)"
    assert trees.alive[1].sum() == trees.alive[2].sum() == 1


@pytest.mark.parametrize("name", WITHOUT_TREE)
def test_a_model_without_a_tree_says_so(name):
    with pytest.raises(ValueError, match="builds no tree"):
        make(name)(zero_padded_tokens(LENGTHS, D)[0], need_trees=True)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_may_be_narrower_than_nodes(name):
    encoder = make(name, input_size=3)
    x, is_padding = zero_padded_tokens(LENGTHS, 3)
    assert encode(encoder, x, is_padding).shape == (len(LENGTHS), D)


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_and_a_pickle_are_equal_and_apart(name):
    encoder = make(name).eval()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    expected = encode(encoder, x, is_padding)
    for twin in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        torch.testing.assert_close(encode(twin, x, is_padding), expected)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        torch.testing.assert_close(encode(encoder, x, is_padding), expected)


@pytest.mark.parametrize("name", NAMES)
def test_two_forwards_before_their_backwards_keep_apart_and_a_kept_graph_answers_again(name):
    encoder = make(name).eval()
    (x, is_padding), (z, _) = zero_padded_tokens(LENGTHS, D), zero_padded_tokens([4, 2], D)
    apart = []
    for part, mask in ((x, is_padding), (z, None)):
        encoder.zero_grad()
        encode(encoder, part, mask).square().sum().backward()
        apart.append([p.grad.clone() for p in encoder.parameters()])
    encoder.zero_grad()
    first, second = encode(encoder, x, is_padding), encode(encoder, z)
    with torch.no_grad():
        encode(encoder, z.flip(1))
    first.square().sum().backward(retain_graph=True)
    second.square().sum().backward()
    first.square().sum().backward()
    for parameter, one, other in zip(encoder.parameters(), *apart, strict=True):
        torch.testing.assert_close(parameter.grad, 2 * one + other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["gold-grc", "gt-grc", "egt-grc", "crvnn"])
def test_parameters_changed_before_the_backward_pass_are_noticed(name):
    encoder, (x, is_padding) = make(name), zero_padded_tokens(LENGTHS, D)
    root = encode(encoder, x, is_padding)
    with torch.no_grad():
        encoder.cell.w1.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        root.sum().backward()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TWICE_DIFFERENTIABLE])
def test_a_second_derivative_is_refused(name):
    encoder, (x, is_padding) = make(name), zero_padded_tokens(LENGTHS, D)
    root = encode(encoder, x.requires_grad_(), is_padding)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(root.sum(), x, create_graph=True)[0].sum().backward()


@pytest.mark.parametrize("backward_too", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_autocast_keeps_the_parameters_dtype_and_trains(name, backward_too):
    encoder = make(name, dtype=torch.float32, dropout=0.1).train()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    with torch.autocast("cpu", torch.bfloat16):
        vector = encode(encoder, x.float(), is_padding)
    assert vector.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16, enabled=backward_too):
        vector.sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.dtype == torch.float32 for p in encoder.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_refused_by_the_argument_s_name(name):
    encoder = make(name)
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    with pytest.raises(ValueError, match=r"x must have shape \(B, n, 8\)"):
        encode(encoder, x[..., :5], is_padding)
    with pytest.raises(ValueError, match="key_padding_mask of sequence 0 has a real token after padding"):
        encoder(x, key_padding_mask=is_padding[[1]].flip(1).expand_as(is_padding))
    with pytest.raises(ValueError, match="x must have the parameters' dtype"):
        encode(encoder, x.float(), is_padding)


def test_an_unknown_encoder_is_refused_with_the_nearest_name():
    with pytest.raises(BeamtreeError, match=r"no encoder 'EBT-GRC'; did you mean 'ebt-grc'\?"):
        create_encoder("EBT-GRC", 8)
    with pytest.raises(BeamtreeError, match=r"no encoder 'ebtgrc'; did you mean 'ebt-grc'\?"):
        create_encoder("ebtgrc", 8)
    with pytest.raises(
        BeamtreeError, match=r"no encoder 'gpt'; there are ebt-grc, .*, universal-transformer"
    ):
        create_encoder("gpt", 8)


def test_an_unknown_option_is_refused_with_the_nearest_one():
    with pytest.raises(BeamtreeError, match=r"'bt-grc' has no option 'beamsize'; did you mean 'beam_size'\?"):
        create_encoder("bt-grc", 8, beamsize=3)
    with pytest.raises(
        BeamtreeError, match=r"'om' has no option 'halt'; there are input_size, .*memory_slots"
    ):
        create_encoder("om", 8, halt=True)


@pytest.mark.parametrize(
    ("name", "d_model", "options", "count"),
    [
        ("gt-grc", 128, {}, 411_393),
        ("bt-grc", 128, {}, 411_393),
        ("bt-grc-os", 128, {}, 411_393),
        ("egt-grc", 128, {}, 419_585),
        ("ebt-grc", 128, {}, 419_585),
        ("ebt-grc-noslice", 128, {}, 444_289),
        ("ebt-grc-noslice", 128, {"scorer_hidden": 64}, 444_289 - 33_025 + 16_513),
        ("ebt-grc", 512, {"input_size": 128}, 6_371_969),
        ("ebt-grc-noslice", 512, {"input_size": 128}, 6_888_961),
        ("gold-grc", 128, {}, 411_264),
        ("balanced-grc", 128, {}, 411_264),
        ("crvnn", 128, {}, 493_697),
        ("crvnn-nohalt", 128, {}, 493_697),
        ("om", 128, {}, 444_673),
        ("recurrent-grc", 128, {}, 411_392),
        ("recurrent-grc", 128, {"bidirectional": True}, 411_392 + 394_496 + 128 + 2 * 128 * 128 + 128),
    ],
)
def test_encoders_have_the_published_number_of_parameters(name, d_model, options, count):
    encoder = create_encoder(name, d_model, device="meta", **options)
    assert sum(p.numel() for p in encoder.parameters()) == count


@pytest.mark.parametrize(
    ("d_model", "count"), [(128, 394_496), (200, 962_000), (300, 2_163_000), (512, 6_296_576)]
)
def test_the_cell_has_the_published_number_of_parameters(d_model, count):
    encoder = create_encoder("gold-grc", d_model, device="meta")
    assert sum(p.numel() for p in encoder.cell.parameters()) == count


@pytest.mark.parametrize(
    ("name", "count"), [("bt-grc", 129), ("ebt-grc", 8_321), ("ebt-grc-noslice", 33_025)]
)
def test_the_scorers_have_the_published_number_of_parameters(name, count):
    encoder = create_encoder(name, 128, device="meta")
    assert sum(p.numel() for p in encoder.scorer.parameters()) == count


@pytest.mark.parametrize("name", ["ebt-grc", "egt-grc"])
@pytest.mark.parametrize("slice_size", [16, 32, 100, 128])
def test_the_slice_may_be_of_any_width(name, slice_size):
    encoder = create_encoder(name, 128, slice_size=slice_size)
    assert encoder.scorer.hidden.weight.shape == (64, 2 * slice_size)
    torch.manual_seed(0)
    x = torch.randn(1, 5, 128)
    score = encoder.scorer(x[:, :-1], x[:, 1:])
    x[..., slice_size:] = 0
    torch.testing.assert_close(encoder.scorer(x[:, :-1], x[:, 1:]), score)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_parameters_train(name):
    encoder = make(name, dtype=torch.bfloat16, dropout=0.1).train()
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    vector = encode(encoder, x.bfloat16(), is_padding)
    assert vector.dtype == torch.bfloat16
    vector.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize("name", [*WITHOUT_TREE, "crvnn", "om"])  # rounding turns no choice of theirs
def test_half_precision_and_autocast_stay_near(name):
    encoder, (x, is_padding) = make(name).eval(), zero_padded_tokens(LENGTHS, D)
    expected = encode(encoder, x, is_padding)
    half = encode(copy.deepcopy(encoder).bfloat16(), x.bfloat16(), is_padding)
    with torch.autocast("cpu", torch.bfloat16):
        cast = encode(copy.deepcopy(encoder).float(), x.float(), is_padding)
    for found in (half, cast):
        torch.testing.assert_close(found.double(), expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_parameters_stay_without_gradient_and_inference_mode_works(name):
    encoder = make(name).train()
    frozen = [p for key, p in encoder.named_parameters() if key.startswith("leaf")]
    for parameter in frozen:
        parameter.requires_grad_(False)
    x, is_padding = zero_padded_tokens(LENGTHS, D)
    encode(encoder, x, is_padding).square().sum().backward()
    assert all(p.grad is None for p in frozen)
    with torch.inference_mode():
        assert encode(encoder.eval(), x, is_padding).isfinite().all()


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from([name for name in NAMES if name not in WITHOUT_TREE]),
    words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=7), min_size=1, max_size=4),
)
def test_repeated_tokens_do_not_make_a_sequence_depend_on_its_batch(name, words):
    encoder = make(name).eval()
    torch.manual_seed(4)
    vocabulary = torch.randn(4, D, dtype=torch.float64)
    n = max(map(len, words))
    x = torch.stack([vocabulary[[*word, *[0] * (n - len(word))]] for word in words])
    is_padding = torch.arange(n) >= torch.tensor([[len(word)] for word in words])
    together = encode(encoder, x, is_padding)
    for b, word in enumerate(words):
        alone = encode(encoder, vocabulary[word].unsqueeze(0))
        torch.testing.assert_close(together[b : b + 1], alone, rtol=0, atol=1e-9)
