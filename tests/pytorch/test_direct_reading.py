"""Parts whose weights are read directly: what wraps one is refused, since it would silently do nothing; what
makes its weights before every call is heard.
"""

import copy

import pytest
import torch
from small_encoders import random_tokens, trees_to_follow
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, weight_norm

from beamtree import BeamTreeEncoder, create_encoder
from beamtree.zoo.by_name import encoder_names, pair_encoder_names

D = 6


class Adapted(nn.Module):
    """As fine-tuning libraries wrap a linear map: its result and a little more."""

    def __init__(self, wrapped: nn.Linear) -> None:
        super().__init__()
        self.wrapped = wrapped
        self.weight, self.bias = wrapped.weight, wrapped.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.wrapped(x) + 1


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize(
    ("owner", "name"), [("cell", "w1"), ("cell", "w2"), ("scorer", "hidden"), ("leaf", "linear")]
)
def test_a_wrapper_is_refused_and_the_part_stays(owner: str, name: str) -> None:
    encoder = BeamTreeEncoder(D)
    module = getattr(encoder, owner)
    part = getattr(module, name)
    with pytest.raises(ValueError, match=f"{name} of .* must stay an nn.Linear, got Adapted: its weights"):
        setattr(module, name, Adapted(part))
    assert getattr(module, name) is part


@pytest.mark.parametrize(("name", "part"), [("gau", "gau.0.gate"), ("om", "beta"), ("crvnn", "conv")])
def test_a_wrapper_of_what_a_rival_reads_is_refused_when_it_is_read(name: str, part: str) -> None:
    encoder = create_encoder(name, D)
    encoder.set_submodule(part, Adapted(encoder.get_submodule(part)))
    sentences = [torch.randn(2, 3, D)] * (2 if name == "gau" else 1)
    with pytest.raises(ValueError, match=r"Adapted cannot replace an nn\.Linear"):
        encoder(*sentences)


def test_another_linear_map_and_a_parametrization_have_their_effect() -> None:
    encoder, x = BeamTreeEncoder(D).eval(), torch.randn(2, 4, D)
    exchanged = copy.deepcopy(encoder)
    exchanged.cell.w1 = nn.Linear(2 * D, 4 * D)
    exchanged.cell.w1.load_state_dict(
        {name: 2 * value for name, value in encoder.cell.w1.state_dict().items()}
    )
    parametrize.register_parametrization(encoder.cell.w1, "weight", Doubled())
    parametrize.register_parametrization(encoder.cell.w1, "bias", Doubled())
    torch.testing.assert_close(encoder(x), exchanged(x))


@pytest.mark.parametrize(
    "name", [name for name in (*encoder_names(), *pair_encoder_names()) if "transformer" not in name]
)
def test_pruned_weights_follow_what_they_are_made_of(name: str) -> None:
    x, is_padding = random_tokens([5, 3, 1], D)
    torch.manual_seed(0)
    encoder = create_encoder(name, D, dtype=torch.float64).eval()
    plain = copy.deepcopy(encoder)
    given = trees_to_follow(encoder, x, is_padding)
    sentences = (x, x.flip(2), is_padding, is_padding) if name in pair_encoder_names() else (x, is_padding)
    read = [(a, b) for a, b in zip(encoder.modules(), plain.modules(), strict=True) if hasattr(a, "weight")]
    for part, twin in read:
        prune.l1_unstructured(part, "weight", 0.3)
        with torch.no_grad():
            part.weight_orig *= 1.5  # as an optimizer changes it: the pruned weight itself is not told
            twin.weight.copy_(part.weight_orig * part.weight_mask)
    for model in (encoder, plain):
        model(*sentences, **given).square().sum().backward()
    torch.testing.assert_close(encoder(*sentences, **given), plain(*sentences, **given))
    for part, twin in read:
        torch.testing.assert_close(part.weight_orig.grad, twin.weight.grad * part.weight_mask)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_weight_norm_by_hooks_trains_as_the_parametrization_does() -> None:
    x = torch.randn(3, 5, D)
    torch.manual_seed(0)
    by_hook, by_parametrization = BeamTreeEncoder(D).eval(), BeamTreeEncoder(D).eval()
    by_parametrization.load_state_dict(by_hook.state_dict())
    for encoder, normalize in (
        (by_hook, weight_norm),
        (by_parametrization, nn.utils.parametrizations.weight_norm),
    ):
        for part in (encoder.leaf.linear, encoder.cell.w1, encoder.cell.w2, encoder.scorer.hidden):
            normalize(part)
        optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            encoder(x).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(by_hook(x), by_parametrization(x))


@pytest.mark.parametrize(
    ("name", "part"), [("w1", nn.Linear(2 * D, 4 * D, False)), ("norm", nn.LayerNorm(D, bias=False))]
)
def test_a_part_without_a_bias_is_named(name: str, part: nn.Module) -> None:
    encoder = BeamTreeEncoder(D)
    setattr(encoder.cell, name, part)
    with pytest.raises(
        ValueError, match=f"{type(part).__name__} must have a weight and a bias here, because they are read"
    ):
        encoder(torch.randn(1, 3, D))


class LowRank(nn.Linear):
    """As fine-tuning libraries adapt a linear map that they inherit from."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


@pytest.mark.parametrize("name", ["w1", "w2"])
def test_a_linear_map_with_another_forward_is_refused(name: str) -> None:
    encoder = BeamTreeEncoder(D)
    part = getattr(encoder.cell, name)
    with pytest.raises(ValueError, match=f"{name} of .* must stay an nn.Linear, got LowRank: its weights"):
        setattr(encoder.cell, name, LowRank(part.in_features, part.out_features))
    encoder.set_submodule("leaf.linear", nn.Linear(D, D))
    part.__class__ = LowRank  # nobody was told
    with pytest.raises(ValueError, match=r"LowRank cannot replace an nn\.Linear"):
        encoder(torch.randn(2, 3, D))


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        *((name, "cell.norm") for name in ("ebt-grc", "bt-grc", "gt-grc", "egt-grc", "balanced-grc")),
        *((name, "cell.norm") for name in ("bt-grc-os", "recurrent-grc", "gold-grc", "crvnn")),
        *(("om", "key.norm"), ("om", "memory_norm")),
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_another_eps_of_a_norm_has_its_effect_or_is_refused(name: str, norm: str, training: bool) -> None:
    x = torch.randn(2, 4, D)
    torch.manual_seed(0)
    encoder = create_encoder(name, D).train(training)
    given = trees_to_follow(encoder, x, None)
    torch.manual_seed(1)
    before = encoder(x, **given)
    encoder.get_submodule(norm).eps = 0.1
    torch.manual_seed(1)
    try:
        after = encoder(x, **given)
    except ValueError as error:
        assert "eps of this LayerNorm must be 1e-05, got 0.1" in str(error)  # noqa: PT017
    else:
        assert not torch.allclose(after, before)


def test_a_norm_that_is_called_may_have_any_eps() -> None:
    torch.manual_seed(0)
    encoder, x = BeamTreeEncoder(D).eval(), torch.randn(2, 1, D)
    encoder.leaf.norm.eps = 0.1
    expected = torch.nn.functional.layer_norm(encoder.leaf.linear(x), (D,), eps=0.1)
    torch.testing.assert_close(encoder(x), expected[:, 0])


def test_the_weights_of_the_entangled_scorer_may_be_parametrized() -> None:
    torch.manual_seed(0)
    encoder, x = create_encoder("bt-grc", D).eval(), torch.randn(2, 5, D)
    changed = copy.deepcopy(encoder)
    with torch.no_grad():
        changed.scorer.weight *= 2
    parametrize.register_parametrization(encoder.scorer, "weight", Doubled())
    torch.testing.assert_close(encoder(x), changed(x))
    for model in (encoder, changed):
        model(x).square().sum().backward()
    found = encoder.scorer.parametrizations.weight.original.grad
    torch.testing.assert_close(found, 2 * changed.scorer.weight.grad)
