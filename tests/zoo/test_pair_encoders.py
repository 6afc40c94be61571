"""The three encoders of sentence pairs: published vectors, parameter counts, and the sequence written out."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from beamtree import BeamtreeError, create_encoder
from beamtree.zoo.by_name import pair_encoder_names
from beamtree.zoo.pair_encoders import TreePairEncoder

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "golden"
NAMES = pair_encoder_names()
D = 8
LENGTHS = [5, 1, 2, 3], [4, 6, 1, 2]


def make(name: str, **options) -> nn.Module:
    torch.manual_seed(1)
    return create_encoder(name, D, **{"dtype": torch.float64} | options)


def make_input() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    xs, masks = [], []
    for lengths in LENGTHS:
        is_padding = torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]
        x = torch.randn(len(lengths), max(lengths), D, dtype=torch.float64)
        xs.append(x.masked_fill(is_padding.unsqueeze(-1), 0.0))
        masks.append(is_padding)
    return xs[0], xs[1], masks[0], masks[1]


def flat(name: str) -> str:
    return name.removeprefix("contextualizer.").removeprefix("source.")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published implementations' vectors are not at hand")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", NAMES)
def test_published_vectors_and_gradients_are_met(name, dtype, tolerance):
    path = PUBLISHED / f"{name}.safetensors"
    golden = load_file(path)
    with safe_open(path, "pt") as file:
        norms = json.loads(file.metadata()["param_grad_norms"])
    encoder = create_encoder(name, golden["output"].shape[1], dtype=dtype).eval()
    encoder.load_state_dict(
        {key.removeprefix("param."): value for key, value in golden.items() if key.startswith("param.")}
    )
    x = golden["input"].to(dtype).requires_grad_()
    is_padding = torch.arange(x.shape[1]) >= golden["lengths"][:, None]
    half = len(x) // 2
    output = encoder(x[:half], x[half:], is_padding[:half], is_padding[half:])
    (output * golden["cotangent"]).sum().backward()
    close = {"rtol": 0, "atol": tolerance, "check_dtype": False}
    torch.testing.assert_close(output, golden["output"], **close)
    torch.testing.assert_close(x.grad[~is_padding], golden["input_grad"][~is_padding], **close)
    largest = max(norms.values())
    for key, parameter in encoder.named_parameters():
        norm = norms[flat(key)]
        assert abs(float(parameter.grad.norm()) - norm) <= 1e-4 * max(norm, 1e-3 * largest), key


@pytest.mark.parametrize(
    ("name", "at_300", "at_128"),
    [("gau", 4_449_721, 870_401), ("egt-gau", 4_241_002, 804_098), ("ebt-gau", 4_241_002, 804_098)],
)
def test_parameters_are_as_many_as_published(name, at_300, at_128):
    for d, count in ((300, at_300), (128, at_128)):
        encoder = create_encoder(name, d, device="meta")
        assert sum(parameter.numel() for parameter in encoder.parameters()) == count


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_is_pooled_from_one_sequence_of_both_sentences(name):
    encoder = make(name, random_segments=True).eval()
    x1, x2, mask1, mask2 = make_input()
    found = encoder(x1, x2, mask1, mask2)
    assert found.shape == (4, D)
    for b in range(4):
        tokens, cls = [], []
        for x, lengths in zip((x1, x2), LENGTHS, strict=True):
            sentence = x[b : b + 1, : lengths[b]]
            if name == "gau":
                tokens.append(encoder.leaf(sentence))
                cls.append(encoder.cls.expand(1, 1, D))
            else:
                context = encoder.contextualizer.contextualize(sentence)
                hidden = F.gelu(encoder.cls_mlp.hidden(context.root))
                tokens.append(context.tokens)
                cls.append(encoder.cls_mlp.out(hidden)[:, None])
        z = torch.cat(
            [
                cls[0] + encoder.seg1,
                tokens[0] + encoder.seg1,
                encoder.sep[None, None],
                cls[1] + encoder.seg2,
                tokens[1] + encoder.seg2,
            ],
            1,
        )
        for unit in encoder.gau if name == "gau" else [encoder.gau] * 3:
            z = unit(z)
        weights = encoder.pool.out(F.gelu(encoder.pool.hidden(z))).softmax(1)
        torch.testing.assert_close(found[b], (weights * z).sum(1)[0])


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_padding_has_no_effect_and_every_parameter_gets_a_gradient(name):
    encoder = make(name, dropout=0.2).train()
    x1, x2, mask1, mask2 = make_input()
    dirty = [
        x.masked_fill(mask.unsqueeze(-1), torch.nan).requires_grad_()
        for x, mask in ((x1, mask1), (x2, mask2))
    ]
    torch.manual_seed(3)
    expected = encoder(x1, x2, mask1, mask2)
    torch.manual_seed(3)
    found = encoder(*dirty, mask1, mask2)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())
    assert all(x.grad.isfinite().all() for x in dirty)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_keeps_the_parameters_type(name):
    encoder = make(name, dtype=torch.float32).eval()
    x1, x2, mask1, mask2 = make_input()
    sentences = x1.float(), x2.float(), mask1, mask2
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder(*sentences)
    torch.testing.assert_close(found, encoder(*sentences), rtol=0.1, atol=0.1)  # types are compared too


@pytest.mark.parametrize("name", NAMES)
def test_segments_start_at_zero_unless_they_are_to_be_random(name):
    assert make(name).seg1.eq(0).all()
    assert make(name, random_segments=True).seg1.ne(0).all()


@pytest.mark.parametrize("name", NAMES)
def test_tokens_may_have_another_width(name):
    encoder = create_encoder(name, D, input_size=5)
    assert encoder(torch.randn(2, 3, 5), torch.randn(2, 4, 5)).shape == (2, D)


@pytest.mark.parametrize("name", NAMES)
def test_the_printed_variants_are_options(name):
    options = {"scalar_bias": True} | ({} if name == "gau" else {"attend_self": True})
    encoder = make(name, **options)
    x1, x2, mask1, mask2 = make_input()
    encoder(x1, x2, mask1, mask2).sum().backward()
    assert [key for key, p in encoder.named_parameters() if p.grad is None] == []
    assert {m.scale for m in encoder.modules() if hasattr(m, "scalar_bias")} == {(2 * D) ** -0.5}


def test_dropout_reaches_cell_and_attention_unless_they_differ():
    encoder = make("ebt-gau", dropout=0.3)
    assert encoder.contextualizer.source.cell.dropout == encoder.gau.dropout.p == 0.3
    encoder = make("ebt-gau", dropout=0.3, attention_dropout=0.1, beam_size=2)
    assert (encoder.contextualizer.source.beam_size, encoder.contextualizer.parent_gau.dropout.p) == (2, 0.1)


def test_any_tree_source_may_stand_in_a_pair_encoder():
    source = create_encoder("balanced-grc", D)
    encoder = TreePairEncoder(D, source=source)
    assert encoder.contextualizer.source is source
    assert encoder(torch.randn(2, 3, D), torch.randn(2, 4, D)).shape == (2, D)


def test_weights_load_under_nested_and_flat_names_inside_a_larger_model():
    saved = make("ebt-gau")
    for state in (saved.state_dict(), {flat(key): value for key, value in saved.state_dict().items()}):
        outer = nn.ModuleDict({"encoder": make("ebt-gau"), "head": nn.Linear(D, 3)})
        head = {f"head.{key}": value for key, value in outer["head"].state_dict().items()}
        with torch.no_grad():
            for parameter in outer["encoder"].parameters():
                parameter.zero_()
        outer.load_state_dict({f"encoder.{key}": value for key, value in state.items()} | head)
        for found, expected in zip(outer["encoder"].parameters(), saved.parameters(), strict=True):
            torch.testing.assert_close(found, expected)


def test_wrong_arguments_are_named():
    encoder = make("gau")
    x1, x2, mask1, _ = make_input()
    with pytest.raises(ValueError, match="x1 and x2 must hold the same number of sentences, got 4 and 2"):
        encoder(x1, x2[:2])
    with pytest.raises(ValueError, match=r"in x2 or key_padding_mask2: x must be a tensor .* got list"):
        encoder(x1, [1])
    with pytest.raises(ValueError, match="in x2 or key_padding_mask2: key_padding_mask must have shape"):
        encoder(x1, x2, mask1, mask1)
    with pytest.raises(
        ValueError, match=r"in x1 or key_padding_mask1: key_padding_mask must be a bool tensor, .* got list"
    ):
        encoder(x1, x2, mask1.tolist())
    x2[1, 2] = torch.nan
    for name in NAMES:
        with pytest.raises(ValueError, match="in x2 or key_padding_mask2: x is not finite at sequence 1"):
            make(name)(x1, x2, mask1)
    with pytest.raises(BeamtreeError, match="has no option 'beam_size'"):
        make("egt-gau", beam_size=3)
    with pytest.raises(ValueError, match="input_size, beam_size and stochastic belong to a named source"):
        TreePairEncoder(D, source=create_encoder("ebt-grc", D), beam_size=3)
    with pytest.raises(BeamtreeError, match="did you mean 'ebt-gau'"):
        make("ebt-gaus")
