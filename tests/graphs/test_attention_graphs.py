"""Parent attention and interaction give as CUDA graphs what they give without."""

import pytest
import torch
from on_gpu import needs_gpu
from played_graphs import Recording
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from beamtree import BeamTreeContextualizer, create_encoder

QUIET = {"stochastic": False}
SOURCES = ("ebt-grc", "egt-grc", "gt-grc", "balanced-grc")
PAIRS = ("gau", "egt-gau", "ebt-gau")
D = 6


def make_pair_encoder(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    quiet = {} if name == "gau" else QUIET
    return create_encoder(name, D, dtype=torch.float64, **quiet, **options).train()


def make_contextualizer(source: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    quiet = {} if source == "balanced-grc" else QUIET
    found = create_encoder(source, D, dtype=torch.float64, **quiet)
    return BeamTreeContextualizer(D, source=found, dtype=torch.float64, **options).train()


def make_tokens(lengths: list[int], seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(lengths), max(lengths), D, dtype=torch.float64, generator=generator)
    return x.requires_grad_(), torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]


def values_and_gradients(module: nn.Module, *tokens: tuple[Tensor, Tensor]) -> list[Tensor | None]:
    xs, masks = zip(*tokens, strict=True)
    y = module(*xs, *masks)
    cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2)).to(y.device)
    wanted = [*xs, *module.parameters()]
    return [y, *torch.autograd.grad(y, wanted, cotangent, allow_unused=True)]


def assert_same(module: nn.Module, given: list[tuple[Tensor, Tensor]], tolerance: float = 1e-10) -> None:
    replayed = values_and_gradients(module, *given)
    kept = {part: part.graphs.capacity for part in module.modules() if hasattr(part, "graphs")}
    for part in kept:
        part.graphs.capacity = 0
    plain = values_and_gradients(module, *given)
    for part, capacity in kept.items():
        part.graphs.capacity = capacity
    for mine, theirs in zip(replayed, plain, strict=True):
        if mine is None or theirs is None:
            assert mine is theirs
        else:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("options", [{}, {"attend_self": True, "residual": True, "refinements": 1}])
def test_a_contextualizer_as_graphs_has_the_same_tokens_and_gradients(
    captures: list[Recording],
    source: str,
    options: dict[str, object],
) -> None:
    module = make_contextualizer(source, **options)
    for lengths in ([6, 3, 1], [9, 2, 4], [7, 7, 7]):
        assert_same(module, [make_tokens(lengths)])
    assert len(module.graphs) == 2  # lengths up to 8 and up to 16
    assert len(captures) == 4  # forward and backward of each


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_encoder_as_graphs_has_the_same_vectors_and_gradients(
    captures: list[Recording],
    name: str,
) -> None:
    module = make_pair_encoder(name)
    for first, second in (([6, 3], [2, 5]), ([7, 1], [3, 8]), ([2, 2], [9, 4])):
        assert_same(module, [make_tokens(first), make_tokens(second, seed=3)])
    assert len(module.graphs) == 2


def test_sentences_of_one_token_go_without_graphs(captures: list[Recording]) -> None:
    for name in PAIRS:
        assert_same(make_pair_encoder(name), [make_tokens([1, 1]), make_tokens([1, 1], seed=3)])
    assert not captures


def test_dropout_that_is_changed_or_turned_off_is_followed(captures: list[Recording]) -> None:
    module = make_pair_encoder("gau", dropout=0.5)
    given = [make_tokens([6, 3]), make_tokens([2, 5], seed=3)]

    def drops() -> bool:
        one, other = (values_and_gradients(module, *given)[0] for _ in range(2))
        assert one is not None
        assert other is not None
        return not torch.equal(one, other)

    assert drops()
    for unit in module.gau:
        unit.dropout.p = 0.0
    assert not drops()
    for unit in module.gau:
        unit.dropout.p = 0.9
    assert drops()
    assert not (module.eval(), drops())[1]


def test_a_module_with_a_hook_is_called_every_time(captures: list[Recording]) -> None:
    module, given = make_contextualizer("ebt-grc"), [make_tokens([6, 3])]
    calls = []
    handle = module.parent_gau.out.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(3):
        values_and_gradients(module, *given)
    assert len(calls) == 3 * module.refinements
    assert not captures
    handle.remove()
    assert_same(module, given)
    assert captures


def test_activation_checkpointing_is_exact_and_does_without_graphs(captures: list[Recording]) -> None:
    module, (x, mask) = make_contextualizer("egt-grc"), make_tokens([6, 3])
    with torch.random.fork_rng():
        again = checkpoint(module, x, mask, use_reentrant=False)
    (found,) = torch.autograd.grad(again.square().sum(), x)
    assert not captures
    (expected,) = torch.autograd.grad(module(x, mask).square().sum(), x)
    torch.testing.assert_close(found, expected)
    assert captures


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", PAIRS)
def test_on_a_gpu_pair_encoders_as_graphs_agree_with_themselves_without(name: str) -> None:
    torch.manual_seed(0)
    quiet = {} if name == "gau" else QUIET
    module = create_encoder(name, 64, device="cuda", **quiet).train()
    for first, second in ((9, 5), (17, 30), (12, 8)):
        tokens = [torch.randn(4, n, 64, device="cuda", requires_grad=True) for n in (first, second)]
        masks = [torch.arange(n, device="cuda") >= torch.tensor([[n], [2], [1], [n - 1]], device="cuda")
                 for n in (first, second)]  # fmt: skip
        assert_same(module, list(zip(tokens, masks, strict=True)), tolerance=2e-3)
    assert len(module.graphs) > 0
    assert module.graphs.capacity > 0  # no capture has failed


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", PAIRS)
def test_on_a_gpu_a_trained_step_drops_differently_every_time(name: str) -> None:
    module = create_encoder(name, 64, device="cuda", dropout=0.3).train()
    x = torch.randn(4, 12, 64, device="cuda")
    first = module(x, x)
    first.sum().backward()
    second = module(x, x)
    second.sum().backward()
    assert not torch.equal(first, second)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())
