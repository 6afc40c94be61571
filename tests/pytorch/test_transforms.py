"""PyTorch's ways of exchanging weights and of differentiating forwards: each is right, or refused."""

import copy
from collections.abc import Callable
from itertools import product

import pytest
import torch
from every_block import BLOCKS, call
from on_gpu import needs_gpu
from own_cells import DotScorer, MeanCell, make_encoder, make_input
from small_encoders import assert_same, gradients, random_tokens, trees_to_follow
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, spectral_norm

from beamtree import BeamTreeEncoder, create_encoder, cuda_graphs
from beamtree.zoo.by_name import encoder_names

D = 6
LENGTHS = [5, 3, 1, 2]


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "own cell":
        return make_encoder()
    if name == "equal trees":
        return BeamTreeEncoder(D, merge_equal_trees=True, dtype=torch.float64)
    return create_encoder(name, D, dtype=torch.float64)


class Called(nn.Module):
    """A block that is called with x and a mask alone, whatever else it wants."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, is_padding: Tensor) -> Tensor:
        return call(self.block, x, is_padding)


@pytest.mark.parametrize("name", [*encoder_names(), "own cell", "equal trees"])
def test_weights_lent_by_functional_call_get_the_gradients(name: str) -> None:
    encoder, (x, is_padding) = make(name).eval(), random_tokens(LENGTHS, D)
    given = trees_to_follow(encoder, x, is_padding)
    x.requires_grad_()
    expected = gradients(encoder(x, is_padding, **given), x, encoder)
    lent = {key: value.detach().clone().requires_grad_() for key, value in encoder.named_parameters()}
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter *= 0.5
    output = functional_call(encoder, lent, (x, is_padding), given)
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    assert_same(torch.autograd.grad((output * weight).sum(), [x, *lent.values()]), expected)


def by_dual_numbers(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], directions: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """What `torch.func.jvp` does, in the older words; no tangent is a tangent of zero."""
    with forward_ad.dual_level():
        dual = function(*map(forward_ad.make_dual, inputs, directions))
        output, tangent = forward_ad.unpack_dual(dual)
        return output, torch.zeros_like(output) if tangent is None else tangent


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", torch.float64), pytest.param("cuda", torch.float32, marks=[pytest.mark.gpu, needs_gpu])],
)
@pytest.mark.parametrize("name", [*BLOCKS, "own cell"])
def test_a_forward_mode_derivative_is_right_or_refused(name: str, device: str, dtype: torch.dtype) -> None:
    block = BLOCKS[name]() if name in BLOCKS else make(name)
    block.to(device, dtype)
    x, is_padding = random_tokens(LENGTHS, block.d_model)
    (key, weight), *_ = ((key, p) for key, p in block.named_parameters() if key.endswith("weight"))

    def project(x: Tensor, weight: Tensor) -> Tensor:
        torch.manual_seed(1)
        output = functional_call(Called(block), {f"block.{key}": weight}, (x, is_padding.to(x.device)))
        return output.flatten() @ torch.linspace(-1, 1, output.numel()).to(output)

    ways = (torch.func.jvp, by_dual_numbers, torch.no_grad()(by_dual_numbers))
    for differentiate, training, trainable in product(ways, (False, True), (False, True)):
        block.train(training).requires_grad_(trainable)
        inputs = (x.to(weight), weight.detach().clone())
        directions = tuple(map(torch.randn_like, inputs))
        try:
            _, tangent = differentiate(project, inputs, directions)
        except NotImplementedError:
            continue
        with cuda_graphs(False):  # they pad, and longer sequences draw other noise
            gradients = torch.autograd.grad(project(*(part.requires_grad_() for part in inputs)), inputs)
        expected = sum((g * v).sum() for g, v in zip(gradients, directions, strict=True))
        near = 1e-3 if dtype == torch.float32 else 1e-7
        torch.testing.assert_close(tangent, expected, rtol=near, atol=1e-4)


def test_the_search_says_that_it_has_no_forward_mode_derivative() -> None:
    encoder, x = make("ebt-grc").eval(), torch.randn(1, 3, D, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jacfwd(encoder)(x)
    weight = encoder.cell.w1.weight.detach()
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda w: functional_call(encoder, {"cell.w1.weight": w}, (x,)), (weight,), (weight,))


@pytest.mark.parametrize("used_before", [False, True])
def test_a_users_cell_may_be_parametrized_with_its_weights_cached(used_before: bool) -> None:
    encoder, (x, is_padding) = make_encoder(), make_input(LENGTHS)
    parametrizations.weight_norm(encoder.cell.hidden)
    used = encoder if used_before else copy.deepcopy(encoder)
    expected = gradients(used(x, is_padding), x, used)
    with parametrize.cached():
        assert_same(gradients(encoder(x, is_padding), x, encoder), expected)


@pytest.mark.parametrize("normalize", [parametrizations.spectral_norm, spectral_norm])
def test_a_norm_that_changes_at_every_call_is_refused_in_a_users_cell(
    normalize: Callable[[nn.Module], nn.Module],
) -> None:
    encoder, (x, is_padding) = make_encoder(), make_input(LENGTHS)
    normalize(encoder.cell.hidden)
    with pytest.raises(ValueError, match=r"cell contains _?SpectralNorm \(hidden.*\) in training mode"):
        encoder(x, is_padding)
    encoder.eval()(x, is_padding).sum().backward()


def test_a_users_cell_may_be_compiled() -> None:
    encoder, (x, is_padding) = make_encoder(), make_input(LENGTHS)
    expected = gradients(encoder(x, is_padding), x, encoder)
    encoder.cell.compile(backend="aot_eager")
    assert_same(gradients(encoder(x, is_padding), x, encoder), expected)
    encoder.cell = torch.compile(encoder.cell, backend="aot_eager")
    assert_same(gradients(encoder(x, is_padding), x, encoder), expected)


class ShiftedCell(MeanCell):
    """Reads a tensor that is no parameter."""

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().forward(left, right, keep) + self.shift[0]


@pytest.mark.parametrize("frozen", [False, True])
def test_gradient_that_would_go_nowhere_is_refused(frozen: bool) -> None:
    encoder, (x, is_padding) = make_encoder(ShiftedCell), make_input(LENGTHS)
    encoder.cell.requires_grad_(not frozen)
    encoder.cell.shift = [torch.zeros(D, dtype=torch.float64, requires_grad=True)]
    with pytest.raises(ValueError, match=r"reads a tensor of shape \(6,\) that requires gradient"):
        encoder(x, is_padding).sum().backward()
    encoder.cell.shift[0].requires_grad_(False)
    encoder(x, is_padding).sum().backward()


def test_a_users_dropout_layer_and_a_rate_without_a_width_are_named() -> None:
    encoder, (x, is_padding) = make_encoder(), make_input(LENGTHS)
    encoder.cell.dropout = nn.Dropout(0.1)
    with pytest.raises(ValueError, match=r"cell contains Dropout \(dropout\) in training mode"):
        encoder(x, is_padding)
    encoder.eval()(x, is_padding)
    encoder = make_encoder(dropout=0.1)
    del encoder.cell.hidden_size
    with pytest.raises(ValueError, match="cell has a rate `dropout` but no `hidden_size`"):
        encoder(x, is_padding)


def test_a_replica_of_a_users_cell_passes_gradient_to_what_it_was_lent() -> None:
    cell, scorer, (x, is_padding) = (
        MeanCell(dtype=torch.float64),
        DotScorer(dtype=torch.float64),
        make_input([4]),
    )

    def replicate(module: nn.Module) -> nn.Module:
        """As `nn.DataParallel` does: tensors that come from the parameters, as plain attributes."""
        replica = module._replicate_for_data_parallel()
        replica._former_parameters = {}
        for name, parameter in module._parameters.items():
            lent = parameter * 1
            setattr(replica, name, lent)
            replica._former_parameters[name] = lent
        for name, part in module._modules.items():
            setattr(replica, name, replicate(part))
        return replica

    encoder = BeamTreeEncoder(D, cell=cell, scorer=scorer, stochastic=False, dtype=torch.float64)
    twin = copy.copy(encoder)
    twin._modules = {**encoder._modules, "cell": replicate(cell), "scorer": replicate(scorer)}
    expected = gradients(encoder(x, is_padding), x, encoder)
    assert_same(gradients(twin(x, is_padding), x, encoder), expected)
    assert max(float(gradient.abs().max()) for gradient in expected[1:]) > 0
