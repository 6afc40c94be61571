"""Encoders and blocks can be exported: one program gives the eager outputs at all sizes."""

from typing import Any

import pytest
import torch
from exported import in_plain_loops
from small_encoders import random_tokens, trees_to_follow
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from beamtree import BeamTreeContextualizer, HybridStack, create_encoder
from beamtree.zoo.by_name import compared_encoder_names, encoder_names, pair_encoder_names

D = 16
STAY = ("crvnn", "crvnn-nohalt", "om", "mamba")  # cannot be exported
GO = [name for name in (*encoder_names(), *compared_encoder_names()) if name not in STAY]
SOURCES = ("ebt-grc", "bt-grc", "bt-grc-os", "egt-grc", "gt-grc", "balanced-grc", "gold-grc")
LENGTHS = [[1], [1, 1], [2], [2, 1], [3, 1, 2], [7, 4, 1, 2, 6], [12, 12, 5]]


def make(name: str, **options: Any) -> nn.Module:
    """An encoder by its name, or a block: tree:SOURCE, stack:LAYERS."""
    torch.manual_seed(0)
    kind, _, source = name.partition(":")
    factory: dict[str, Any] = {"dtype": torch.float64}
    if kind == "tree":
        block = BeamTreeContextualizer(D, source=create_encoder(source, D, **factory), **options, **factory)
        block.needs_merges = source == "gold-grc"
        return block.eval()
    if kind == "stack":
        return HybridStack(source.split("+"), D, **factory).eval()
    return create_encoder(name, D, **options, **factory).eval()


def call(run: nn.Module, model: nn.Module, lengths: list[int]) -> Tensor:
    """What comes of a batch of these lengths; a pair has them turned, the first lengthened, beside it."""
    x, is_padding = random_tokens(lengths, D)
    if hasattr(model, "interact"):
        x2, is_padding2 = random_tokens([*lengths[1:], lengths[0] + 1], D, seed=3)
        return run(x, x2, is_padding, is_padding2)
    return run(x, is_padding, **trees_to_follow(model, x, is_padding))


def exported(model: nn.Module) -> ExportedProgram:
    """For all sizes, from a batch of one."""
    batch, length, other = Dim("batch", min=1), Dim("length", min=2, max=1000), Dim("other", min=2, max=1000)
    (x, is_padding), sizes = random_tokens([5, 3, 1], D), {0: batch, 1: length}
    if hasattr(model, "interact"):
        x2, is_padding2 = random_tokens([4, 6, 1], D)
        others = {0: batch, 1: other}
        given = (x, x2, is_padding, is_padding2)
        return export(model, given, dynamic_shapes=(sizes, others, sizes, others))
    shapes: dict[str, Any] = {"x": sizes, "key_padding_mask": sizes}
    trees = trees_to_follow(model, x, is_padding)
    if trees:
        shapes["merges"] = {0: batch, 1: length - 1}
    return export(model, (x, is_padding), trees, dynamic_shapes=shapes)


@pytest.mark.parametrize("name", [*GO, *pair_encoder_names(), *(f"tree:{name}" for name in SOURCES)])
def test_what_an_export_traces_gives_the_eager_result(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = make(name)
    wanted = [call(model, model, lengths) for lengths in LENGTHS]
    in_plain_loops(monkeypatch)
    for lengths, expected in zip(LENGTHS, wanted, strict=True):
        torch.testing.assert_close(call(model, model, lengths), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "bt-grc-os",
        "egt-grc",
        "recurrent-grc",
        "balanced-grc",
        "gold-grc",
        "bilstm",
        "transformer",
        "rotary-transformer",
        "ssm-ebt-grc",
        "egt-gau",
        "tree:ebt-grc",
        "stack:ssm+attention",
    ],
)
def test_one_program_serves_all_sizes(name: str) -> None:
    model = make(name)
    program = exported(model).module()
    for lengths in (some for some in LENGTHS if max(some) >= 2):  # the shortest that was asked for
        torch.testing.assert_close(call(program, model, lengths), call(model, model, lengths))


def test_options_are_exported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [
        make("recurrent-grc", bidirectional=True),
        make("bilstm", layers=3),
        make("tree:egt-grc", residual=True, attend_self=True),
    ]
    wanted = [call(model, model, [7, 2, 1]) for model in models]
    in_plain_loops(monkeypatch)
    for model, expected in zip(models, wanted, strict=True):
        torch.testing.assert_close(call(model, model, [7, 2, 1]), expected, rtol=0, atol=1e-10)


def test_a_block_needs_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    block = make("tree:ebt-grc")
    x, _ = random_tokens([6, 6], D)
    wanted = block(x)
    in_plain_loops(monkeypatch)
    torch.testing.assert_close(block(x), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["bt-grc", "gt-grc", "egt-grc", "balanced-grc", "recurrent-grc", "gold-grc", "tree:egt-grc"]
)
def test_training_and_trees_are_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model = make(name)
    x, is_padding = random_tokens([5, 3], D)
    in_plain_loops(monkeypatch)
    with pytest.raises(ValueError, match=r"need_trees.* cannot be exported: leave"):
        model(x, is_padding, need_trees=True)
    with pytest.raises(RuntimeError, match=r"torch.export is for inference here: call eval\(\)"):
        model.train()(x, is_padding)


@pytest.mark.parametrize("name", STAY)
def test_what_cannot_be_exported_says_so(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"(CRvNN|OrderedMemory|MambaEncoder) cannot be exported"):
        exported(make(name))
