"""Every row of the tables by name, `create_encoder("ebt-grc", 128)`; encoders of your own; models of equal
size, each by one option that is solved for.
"""

import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.errors import BeamtreeError, nearest
from beamtree.files.bounded import shown


class _Entry(NamedTuple):
    module: str  # imported only when the name is asked for
    constructor: str
    preset: dict[str, Any]


_ENCODERS = {
    "ebt-grc": _Entry("beamtree.nn.encoder", "BeamTreeEncoder", {}),
    "ebt-grc-noslice": _Entry("beamtree.nn.encoder", "BeamTreeEncoder", {"slice_size": None}),
    "egt-grc": _Entry("beamtree.zoo.gumbel_tree", "EfficientGumbelTreeGRC", {}),
    "gt-grc": _Entry("beamtree.zoo.gumbel_tree", "GumbelTreeGRC", {}),
    "bt-grc": _Entry("beamtree.zoo.beam_tree_grc", "BeamTreeGRC", {}),
    "bt-grc-os": _Entry("beamtree.zoo.one_soft", "OneSoftBeamTreeGRC", {"stochastic": False}),
    "crvnn": _Entry("beamtree.zoo.crvnn", "CRvNN", {}),
    "crvnn-nohalt": _Entry("beamtree.zoo.crvnn", "CRvNN", {"halt": False}),
    "om": _Entry("beamtree.zoo.ordered_memory", "OrderedMemory", {}),
    "recurrent-grc": _Entry("beamtree.zoo.fixed_trees", "RecurrentGRC", {}),
    "balanced-grc": _Entry("beamtree.zoo.fixed_trees", "BalancedTreeGRC", {}),
    "gold-grc": _Entry("beamtree.zoo.fixed_trees", "GoldTreeGRC", {}),
    "bilstm": _Entry("beamtree.zoo.sequence_models", "BiLSTM", {}),
    "transformer": _Entry("beamtree.zoo.transformers", "TransformerSentenceEncoder", {}),
    "universal-transformer": _Entry("beamtree.zoo.transformers", "UniversalTransformer", {}),
}

_BESIDE = {  # not in the paper: for `beamtree compare`
    "rotary-transformer": _Entry("beamtree.zoo.transformers", "RotaryTransformer", {}),
    "s4d": _Entry("beamtree.zoo.sequence_models", "S4DEncoder", {}),
    "mamba": _Entry("beamtree.zoo.sequence_models", "MambaEncoder", {}),
    "ssm-ebt-grc": _Entry("beamtree.zoo.sequence_models", "StateSpaceTree", {}),
}

_PAIR_ENCODERS = {
    "gau": _Entry("beamtree.zoo.pair_encoders", "GatedAttentionPairEncoder", {}),
    "egt-gau": _Entry("beamtree.zoo.pair_encoders", "TreePairEncoder", {"source": "egt-grc"}),
    "ebt-gau": _Entry("beamtree.zoo.pair_encoders", "TreePairEncoder", {"source": "ebt-grc"}),
}

LARGEST_DIFFERENCE = 0.05  # between models of equal size, of the parameters

_BUILT_IN = _ENCODERS | _BESIDE | _PAIR_ENCODERS
_REGISTERED: dict[str, Callable[..., nn.Module]] = {}


def encoder_names() -> tuple[str, ...]:
    """The names of sentence encoders that `create_encoder` knows."""
    return (*_ENCODERS, *_REGISTERED)


def compared_encoder_names() -> tuple[str, ...]:
    """The names of sentence encoders that are not in the paper, which `create_encoder` knows too."""
    return tuple(_BESIDE)


def pair_encoder_names() -> tuple[str, ...]:
    """The names of encoders of sentence pairs that `create_encoder` knows."""
    return tuple(_PAIR_ENCODERS)


def register_encoder(name: str, make: Callable[..., nn.Module]) -> None:
    """Give your own sentence encoder a name, for `create_encoder`, recipes (`model.encoder`) and commands.

    `make(d_model, *, input_size, dropout, …)` returns a module that is called like the encoders here; recipes
    set its further options in `model.options`. Register it before loading a model that was trained with it.
    """
    if name in _BUILT_IN:
        raise BeamtreeError(f"{name!r} is a built-in encoder: choose another name")
    if not callable(make):
        raise BeamtreeError(f"make must be a class or function that returns an encoder, got {shown(make)}")
    _REGISTERED[name] = make


def create_encoder(name: str, d_model: int, *, input_size: int | None = None, **options: Any) -> nn.Module:
    """The sentence encoder of that name, (B, n, input_size or d_model) -> (B, d_model).

    The names are those of `beamtree.zoo.encoder_names()`: ebt-grc, bt-grc, gt-grc, crvnn, om, …, and
    `rotary-transformer`, `s4d`, `mamba` and `ssm-ebt-grc`, an EBT-GRC over S4D layers.
    `gau`, `egt-gau` and `ebt-gau` encode a pair: `encoder(x1, x2, key_padding_mask1, key_padding_mask2)`.

    Options go to the model's constructor: `dropout`, `device` and `dtype` everywhere, `beam_size`,
    `slice_size`, `memory_slots` and others where the model has them.
    """
    constructor, preset = _find(name)
    known = [option for option in inspect.signature(constructor).parameters if option != "d_model"]
    for option in options:
        if option not in known:
            raise BeamtreeError(f"encoder {name!r} has no option {shown(option)}{nearest(option, known)}")
    return constructor(d_model, input_size=input_size, **preset | options)


def check_registered(name: str, make: Callable[[], nn.Module], d_model: int, input_size: int) -> None:
    """Refuse an encoder of the user's that does not give a vector for each sequence, and warn of one whose
    results depend on padding. Built-in ones are not looked at."""
    if name not in _REGISTERED:
        return
    gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    device = torch.device("cuda", gpus[0]) if gpus else torch.device("cpu")
    with torch.random.fork_rng(gpus), torch.no_grad():
        encoder = make().to(device).eval()
        if getattr(encoder, "needs_merges", False):
            return
        x = torch.randn(2, 5, input_size, device=device)
        is_padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device)
        found = encoder(x, key_padding_mask=is_padding)
        shape = tuple(found.shape) if isinstance(found, Tensor) else f"a {type(found).__name__}"
        if shape != (2, d_model):
            raise BeamtreeError(
                f"encoder {name!r} must return (B, d_model), a vector for each sequence: for a batch of 2 "
                f"and d_model = {d_model} it returned {shape}"
            )
        alone = encoder(x[1:, :3], key_padding_mask=is_padding[1:, :3])
        if not torch.allclose(alone[0], found[1], atol=1e-3, rtol=1e-3, equal_nan=True):
            warnings.warn(
                f"encoder {name!r} gives another vector where a sequence is padded: it should leave out "
                "positions at which key_padding_mask is true",
                stacklevel=2,
            )


def _find(name: str) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    if name in _REGISTERED:
        return _REGISTERED[name], {}
    if name not in _BUILT_IN:
        raise BeamtreeError(f"there is no encoder {shown(name)}{nearest(str(name), _BUILT_IN | _REGISTERED)}")
    entry = _BUILT_IN[name]
    return getattr(importlib.import_module(entry.module), entry.constructor), entry.preset


class Shape(NamedTuple):
    """The options of a model that are fixed, and the one that sets its size."""

    fixed: dict[str, Any]
    solved: str


SHAPES = {
    "bilstm": Shape({"layers": 2}, "hidden_size"),
    "rotary-transformer": Shape({"layers": 4}, "hidden_size"),
    "universal-transformer": Shape({}, "hidden_size"),
    "s4d": Shape({"layers": 6}, "state_size"),
    "mamba": Shape({"layers": 4}, "inner_size"),
    "ssm-ebt-grc": Shape({"layers": 2}, "tree_size"),
}


def count_parameters(name: str, d_model: int, **options: Any) -> int:
    """How many parameters an encoder has, without making them."""
    encoder = create_encoder(name, d_model, device="meta", **options)
    return sum(weight.numel() for weight in encoder.parameters())


def equal_sized_options(name: str, d_model: int, wanted: int, **given: Any) -> dict[str, Any]:
    """The given options and those with which an encoder comes closest to `wanted` parameters.

    An encoder without an option to solve for stays as given; one that cannot come close enough is an error.
    """
    if name not in SHAPES:
        return given
    fixed, solved = {**given, **SHAPES[name].fixed}, SHAPES[name].solved
    step = 1 if solved == "state_size" else max(1, d_model // 32)  # a GPU likes round widths

    def count(steps: int) -> int:
        return count_parameters(name, d_model, **fixed, **{solved: steps * step})

    below, above = 1, 2
    while count(above) < wanted:
        below, above = above, 2 * above
    while above - below > 1:  # it grows with its option
        middle = (below + above) // 2
        below, above = (middle, above) if count(middle) < wanted else (below, middle)
    steps = min((below, above), key=lambda steps: abs(count(steps) - wanted))
    if abs(count(steps) - wanted) > LARGEST_DIFFERENCE * wanted:
        raise BeamtreeError(
            f"{name} of width {d_model} cannot have {wanted:,} parameters: the closest is {count(steps):,} "
            f"({solved} = {steps * step})"
        )
    return {**fixed, solved: steps * step}
