"""The work that is measured: a training step (forward, backward, AdamW) or a forward pass on random tokens.

It is done by an encoder of the zoo, the original algorithm, a variant of the paper's Table 1, an encoder with
a user's cell, a contextualiser or a layer of PyTorch. Training uses noise and dropout 0.1. A padding mask is
passed, but every sequence has full length.
"""

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.engine.naive import naive_beam_tree_recursion
from beamtree.engine.randomness import draw_seed
from beamtree.errors import BeamtreeError, nearest
from beamtree.nn.contextualizer import BeamTreeContextualizer
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.parts.contract import dropout_rate
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.by_name import create_encoder, encoder_names

NAIVE = "naive"
DROPOUT = 0.1
ADAMW = {"cpu": "AdamW (PyTorch's default)", "cuda": "AdamW (fused=True)"}
VARIED = {"n": "n", "K": "K", "d": "d", "d_s": "slice_size"}  # a size that can vary -> its field of a case


@dataclass(frozen=True)
class Variant:
    """An encoder of the zoo with options, modified by `changed`; its `d_model` and `input_size`, if given,
    replace those of a case."""

    encoder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    d_model: int | None = None
    input_size: int | None = None
    changed: Callable[[Any], nn.Module] = lambda encoder: encoder


class NaiveEncoder(nn.Module):
    """The original algorithm with the weights of an encoder: the same trees, values and gradients."""

    def __init__(self, encoder: BeamTreeEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.d_model, self.input_size = encoder.d_model, encoder.input_size

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, need_trees: bool = False
    ) -> Tensor | tuple[Tensor, BeamTrees]:
        encoder = self.encoder
        leaves, lengths = encoder.read(x, key_padding_mask)
        roots, scores, merges = naive_beam_tree_recursion(
            leaves,
            lengths,
            encoder.cell,
            encoder.scorer,
            beam_size=encoder.beam_size,
            seed=draw_seed(x.device) if self.training else None,
            noisy=self.training and encoder.stochastic,
            dropout=dropout_rate(encoder.cell),
        )
        root = (scores.softmax(1).unsqueeze(-1) * roots).sum(1)  # (B, d)
        if not need_trees:
            return root
        return root, BeamTrees(merges, scores, scores.new_zeros(len(scores), dtype=torch.float64), lengths)


class TokensInContext(nn.Module):
    """A contextualiser over the trees of an encoder; returns the mean of its tokens."""

    def __init__(self, encoder: BeamTreeEncoder) -> None:
        super().__init__()
        self.d_model, self.input_size = encoder.d_model, encoder.input_size
        device, dropout = next(encoder.parameters()).device, dropout_rate(encoder.cell)
        self.block = BeamTreeContextualizer(self.d_model, source=encoder, dropout=dropout, device=device)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        tokens: Tensor = self.block(x, key_padding_mask=key_padding_mask)
        return tokens.mean(1)


class TwoLayerCell(nn.Module):
    """A cell that a user might write, unknown to the engine."""

    def __init__(self, d_model: int, device: torch.device) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * d_model, 4 * d_model, device=device)
        self.out = nn.Linear(4 * d_model, d_model, device=device)

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        return torch.tanh(self.out(F.gelu(self.hidden(torch.cat((left, right), -1)))))


def _with_own_cell(encoder: BeamTreeEncoder) -> BeamTreeEncoder:
    encoder.cell = TwoLayerCell(encoder.d_model, next(encoder.parameters()).device)
    return encoder


_VARIANTS = {
    NAIVE: Variant("ebt-grc", changed=NaiveEncoder),
    **{f"{name}-faithful": Variant(name, {"mode": "faithful"}) for name in ("gt-grc", "bt-grc", "bt-grc-os")},
    "ebt-grc-512": Variant("ebt-grc", d_model=512, input_size=128),
    "ebt-grc-512-noslice": Variant("ebt-grc-noslice", d_model=512, input_size=128),
    "own-cell": Variant("ebt-grc", changed=_with_own_cell),
    "contextualizer": Variant("ebt-grc", changed=TokensInContext),
}


class PlainLSTM(nn.LSTM):
    """PyTorch's LSTM with its defaults; returns the state after the last token."""

    def __init__(self, d_model: int, device: torch.device | str) -> None:
        super().__init__(d_model, d_model, batch_first=True, device=device)
        self.d_model = d_model

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0][:, -1]


class PlainTransformer(nn.TransformerEncoder):
    """PyTorch's Transformer: two layers of four heads, no positions; returns the mean of its tokens."""

    def __init__(self, d_model: int, device: torch.device | str) -> None:
        heads = 4 if d_model % 4 == 0 else 1
        layer = nn.TransformerEncoderLayer(
            d_model, heads, 4 * d_model, DROPOUT, batch_first=True, device=device
        )
        super().__init__(layer, num_layers=2, enable_nested_tensor=False)
        self.d_model = self.input_size = d_model

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return super().forward(x, src_key_padding_mask=key_padding_mask).mean(1)


# Familiar layers of the same width, which show what a tree costs.
PLAIN: dict[str, type[PlainLSTM] | type[PlainTransformer]] = {
    "nn.LSTM": PlainLSTM,
    "nn.TransformerEncoder": PlainTransformer,
}


def measurable_names() -> tuple[str, ...]:
    return (*encoder_names(), *_VARIANTS, *PLAIN)


def find_variant(name: str) -> Variant:
    if name not in measurable_names():
        raise BeamtreeError(f"there is no model {name!r} to measure{nearest(name, measurable_names())}")
    return _VARIANTS.get(name, Variant(name))


@cache
def takes(name: str, option: str) -> bool:
    """Return True if a model has this option, such as `slice_size`, which models without a slice lack."""
    variant = find_variant(name)
    if name in PLAIN or (option == "slice_size" and variant.encoder.endswith("-noslice")):
        return False
    constructor = type(create_encoder(variant.encoder, 16, device="meta"))
    return option in inspect.signature(constructor).parameters


@dataclass(frozen=True)
class Case:
    """A model and its sizes; None means the model's own size, or one that it does not have."""

    model: str = "ebt-grc"
    B: int = 1
    n: int = 500
    d: int = 128
    K: int | None = 5
    slice_size: int | None = None
    inference: bool = False

    def size(self, varied: str) -> int | None:
        size: int | None = getattr(self, VARIED[varied])
        return size

    def with_size(self, varied: str, size: int) -> "Case":
        return replace(self, **{VARIED[varied]: size})  # type: ignore[arg-type]


def create_measured(case: Case, device: torch.device | str) -> nn.Module:
    """The encoder to measure; options that the model does not have are left out."""
    if case.model in PLAIN:
        return PLAIN[case.model](case.d, device)
    variant = find_variant(case.model)
    options: dict[str, Any] = {"beam_size": case.K, "slice_size": case.slice_size}
    options = {key: value for key, value in options.items() if value is not None and takes(case.model, key)}
    encoder = create_encoder(
        variant.encoder,
        variant.d_model or case.d,
        input_size=variant.input_size,
        dropout=DROPOUT,
        device=device,
        **{**variant.options, **options},
    )
    return variant.changed(encoder)


class Timing(NamedTuple):
    seconds: float
    processor_seconds: float  # of all threads of this process: steadier than the clock on a busy machine


class Workload:
    """A case ready to run. Equal cases, and models whose encoders have the same shape, get equal weights and
    inputs."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case, self.device = case, device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            self.encoder: Any = create_measured(case, device).train(not case.inference)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.encoder.parameters(), fused=True if on_gpu else None)
        self.feed(case.n)

    def feed(self, n: int) -> None:
        """Use sequences of n tokens from now on."""
        B = self.case.B
        draws = torch.Generator().manual_seed(1)
        self.x = torch.randn(B, n, self.encoder.input_size, generator=draws).to(self.device)
        self.grad = torch.randn(B, self.encoder.d_model, generator=draws).to(self.device)
        self.x.requires_grad_(not self.case.inference)
        self.is_padding = torch.zeros(B, n, dtype=torch.bool, device=self.device)
        self.given = {}
        if getattr(self.encoder, "needs_merges", False):
            rightmost = torch.arange(n - 2, -1, -1, device=self.device)
            self.given["merges"] = rightmost.expand(B, n - 1)

    def step(self) -> None:
        if self.case.inference:
            with torch.no_grad():
                self.encoder(self.x, key_padding_mask=self.is_padding, **self.given)
            return
        self.optimizer.zero_grad()
        self.x.grad = None
        self.encoder(self.x, key_padding_mask=self.is_padding, **self.given).backward(self.grad)
        self.optimizer.step()

    def timed_step(self) -> Timing:
        wait_for(self.device)
        clock, processor = time.perf_counter(), time.process_time()
        self.step()
        wait_for(self.device)
        return Timing(time.perf_counter() - clock, time.process_time() - processor)


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
