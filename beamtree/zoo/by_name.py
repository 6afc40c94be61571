"""Makes encoders by name, `create_encoder("ebt-grc", 128)`: the paper's, others for comparison, your own.

`equal_sized_options` solves for the option that gives a model a wanted number of parameters.
"""

import importlib
import inspect
import warnings
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from beamtree.errors import BeamtreeError, nearest
from beamtree.files.bounded import shown


class _Entry(NamedTuple):
    module: str  # imported only when the encoder is made
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

_COMPARED = {  # added for `beamtree compare`; not in the paper
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

LARGEST_DIFFERENCE = 0.05  # models whose parameter counts differ by at most 5 % are of equal size

_BUILT_IN = _ENCODERS | _COMPARED | _PAIR_ENCODERS
_REGISTERED: dict[str, Callable[..., nn.Module]] = {}


def encoder_names() -> tuple[str, ...]:
    """Return the names of the sentence encoders for `create_encoder`, those you registered included.

    Those of `compared_encoder_names` are not among them.
    """
    return (*_ENCODERS, *_REGISTERED)


def compared_encoder_names() -> tuple[str, ...]:
    """Return the names of the encoders for `create_encoder` that were added for `beamtree compare`."""
    return tuple(_COMPARED)


def pair_encoder_names() -> tuple[str, ...]:
    """Return the names of the encoders of sentence pairs, for `create_encoder`."""
    return tuple(_PAIR_ENCODERS)


def register_encoder(name: str, make: Callable[..., nn.Module]) -> None:
    """Give your own sentence encoder a name, for `create_encoder`, recipes (`model.encoder`) and commands.

    ```python
    register_encoder("mine", MyEncoder)
    encoder = create_encoder("mine", 128)
    ```

    Register it before loading a model that was trained with it.

    Args:
        name: any name that is not a built-in encoder's; a name you registered before is replaced.
        make: a class or function, called `make(d_model, *, input_size, dropout, …)`; recipes set further
            options in `model.options`. It returns a module that is called
            `encoder(x, key_padding_mask=is_pad)` and maps (B, n, input_size) to (B, d_model).

    Raises:
        BeamtreeError: if the name is a built-in encoder's or `make` cannot be called.
    """
    if name in _BUILT_IN:
        raise BeamtreeError(f"{name!r} is a built-in encoder: choose another name")
    if not callable(make):
        raise BeamtreeError(f"make must be a class or function that returns an encoder, got {shown(make)}")
    _REGISTERED[name] = make


def create_encoder(name: str, d_model: int, *, input_size: int | None = None, **options: Any) -> nn.Module:
    """Make an encoder by its name, (B, n, input_size) -> (B, d_model).

    ```python
    encoder = create_encoder("bt-grc", 128, beam_size=5, dropout=0.1)
    y = encoder(x, key_padding_mask=is_pad)  # (B, n, 128), (B, n) -> (B, 128)
    ```

    Args:
        name: one of `beamtree.zoo.encoder_names()`, such as ebt-grc, bt-grc, gt-grc, crvnn or om; or
            rotary-transformer, s4d, mamba or ssm-ebt-grc (EBT-GRC over S4D layers). gau, egt-gau and ebt-gau
            encode a pair of sentences: `encoder(x1, x2, key_padding_mask1, key_padding_mask2)`.
        d_model: width of the result.
        input_size: width of the tokens, `d_model` if not given.
        options: passed to the model's constructor: `dropout`, `device` and `dtype` for all models;
            `beam_size`, `slice_size`, `memory_slots` and others for the models that have them.

    Raises:
        BeamtreeError: if there is no encoder of that name, or it has no such option.
    """
    constructor, preset = _find(name)
    known = [option for option in inspect.signature(constructor).parameters if option != "d_model"]
    for option in options:
        if option not in known:
            raise BeamtreeError(f"encoder {name!r} has no option {shown(option)}{nearest(option, known)}")
    return constructor(d_model, input_size=input_size, **preset | options)


def check_registered(name: str, make: Callable[[], nn.Module], d_model: int, input_size: int) -> None:
    """Raise BeamtreeError if a registered encoder does not return one vector per sequence.

    Warns if its results depend on padding. Built-in encoders are not checked.
    """
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
                f"encoder {name!r} must return (B, d_model), one vector per sequence: for a batch of 2 "
                f"and d_model = {d_model} it returned {shape}"
            )
        alone = encoder(x[1:, :3], key_padding_mask=is_padding[1:, :3])
        if not torch.allclose(alone[0], found[1], atol=1e-3, rtol=1e-3, equal_nan=True):
            warnings.warn(
                f"encoder {name!r} gives a different vector if a sequence is padded: it should ignore "
                "positions where key_padding_mask is True",
                stacklevel=2,
            )


def _find(name: str) -> tuple[Callable[..., nn.Module], dict[str, Any]]:
    if name in _REGISTERED:
        return _REGISTERED[name], {}
    if name not in _BUILT_IN:
        raise BeamtreeError(f"there is no encoder {shown(name)}{nearest(str(name), _BUILT_IN | _REGISTERED)}")
    entry = _BUILT_IN[name]
    return getattr(importlib.import_module(entry.module), entry.constructor), entry.preset


class Sizing(NamedTuple):
    """The options of a model that are fixed in comparisons, and the option that sets its size."""

    fixed: dict[str, Any]
    solved: str


SIZINGS = {
    "bilstm": Sizing({"layers": 2}, "hidden_size"),
    "rotary-transformer": Sizing({"layers": 4}, "hidden_size"),
    "universal-transformer": Sizing({}, "hidden_size"),
    "s4d": Sizing({"layers": 6}, "state_size"),
    "mamba": Sizing({"layers": 4}, "inner_size"),
    "ssm-ebt-grc": Sizing({"layers": 2}, "tree_size"),
}


def count_parameters(name: str, d_model: int, **options: Any) -> int:
    """Count the parameters of an encoder without allocating them."""
    encoder = create_encoder(name, d_model, device="meta", **options)
    return sum(weight.numel() for weight in encoder.parameters())


def equal_sized_options(name: str, d_model: int, wanted: int, **given: Any) -> dict[str, Any]:
    """Return `given` with the options added that bring an encoder closest to `wanted` parameters.

    The options of an encoder that is not in `SIZINGS` are returned unchanged. Raises `BeamtreeError` if the
    closest size differs by more than `LARGEST_DIFFERENCE`.
    """
    if name not in SIZINGS:
        return given
    fixed, solved = {**given, **SIZINGS[name].fixed}, SIZINGS[name].solved
    step = 1 if solved == "state_size" else max(1, d_model // 32)  # round widths are faster on a GPU

    def count(steps: int) -> int:
        return count_parameters(name, d_model, **fixed, **{solved: steps * step})

    most = 2
    while count(most) < wanted:
        most *= 2
    above = bisect_left(range(most), wanted, lo=2, key=count)  # the size grows with the option
    steps = min((above - 1, above), key=lambda steps: abs(count(steps) - wanted))
    if abs(count(steps) - wanted) > LARGEST_DIFFERENCE * wanted:
        raise BeamtreeError(
            f"{name} of width {d_model} cannot have {wanted:,} parameters: the closest is {count(steps):,} "
            f"({solved} = {steps * step})"
        )
    return {**fixed, solved: steps * step}
