"""Checks the constraints a caller may put on trees: given merges, or spans that every tree must contain."""

from collections.abc import Sequence

import torch
from torch import Tensor

from beamtree.files.bounded import shown
from beamtree.pytorch.checks import looks_at_values

_LARGEST = 2**62


def check_merges(merges: Tensor, lengths: Tensor, *, n: int | None = None) -> None:
    """Raise ValueError unless merges (B, n-1) are one whole tree for each sequence of lengths (B,).

    At step t a sequence of L tokens has L - t live nodes, so the left node of a pair is at 0 … L - t - 2.
    From step L - 1 on there is nothing left to merge, and entries must be -1. `n` is the padded width, if
    known.
    """
    if not isinstance(merges, Tensor) or merges.dtype != torch.int64:
        kind = merges.dtype if isinstance(merges, Tensor) else type(merges).__name__
        raise ValueError(f"merges must be an int64 tensor of shape (B, n-1), got {kind}")
    B = lengths.shape[0]
    if merges.dim() != 2 or merges.shape[0] != B or n not in (None, merges.shape[1] + 1):
        wanted = f"(B, n-1) with B = {B}" + (f", n = {n}" if n is not None else "")
        raise ValueError(f"merges must have shape {wanted}, got {tuple(merges.shape)}")
    if merges.device != lengths.device:
        raise ValueError(f"merges is on {merges.device}, the input is on {lengths.device}: move one of them")
    if looks_at_values(merges):
        _check_merge_values(merges, lengths)


def _check_merge_values(merges: Tensor, lengths: Tensor) -> None:
    steps = merges.shape[1]
    fits = (lengths >= 1) & (lengths <= steps + 1)
    if not fits.all():
        b = int(fits.logical_not().nonzero()[0])
        raise ValueError(
            f"merges has {steps} steps, which fit 1 to {steps + 1} tokens; sequence {b} has {int(lengths[b])}"
        )
    step = torch.arange(steps, device=merges.device)
    highest = lengths[:, None] - 2 - step  # (B, n-1)
    right = torch.where(highest >= 0, (merges >= 0) & (merges <= highest), merges == -1)
    if not right.all():
        b, t = right.logical_not().nonzero()[0].tolist()
        length, top = int(lengths[b]), int(highest[b, t])
        wanted = (
            f"must be a position from 0 to {top} ({length - t} nodes are left)"
            if top >= 0
            else f"must be -1 (its {length} tokens are one tree after {length - 1} merges)"
        )
        raise ValueError(f"merges of sequence {b} at step {t} {wanted}, got {int(merges[b, t])}")


def check_pins(pinned_spans: Tensor | Sequence[Sequence[Sequence[int]]], lengths: Tensor) -> Tensor:
    """Check pinned spans and return them as an int64 tensor (B, P, 2) of half-open [start, end).

    They are given as such a tensor, padded with -1, or as a list of (start, end) pairs for each sequence.
    Raises ValueError if a span is outside its sequence or if two spans of a sequence cross.
    """
    B = lengths.shape[0]
    if isinstance(pinned_spans, Tensor):
        pins = pinned_spans
        if pins.dtype != torch.int64:
            raise ValueError(f"pinned_spans must be int64, got {pins.dtype}")
        if pins.dim() != 3 or pins.shape[0] != B or pins.shape[2] != 2:
            raise ValueError(f"pinned_spans must have shape (B, P, 2) with B = {B}, got {tuple(pins.shape)}")
        if pins.device != lengths.device:
            raise ValueError(f"pinned_spans is on {pins.device}, the input is on {lengths.device}")
    else:
        pins = _pad_pins(pinned_spans, B)
    if looks_at_values(lengths):
        _check_range(pins.to(lengths.device), lengths)
    if looks_at_values(pins):
        _check_no_crossing(pins)
    return pins.to(lengths.device)


def _pad_pins(pinned_spans: Sequence[Sequence[Sequence[int]]], B: int) -> Tensor:
    if not isinstance(pinned_spans, Sequence) or len(pinned_spans) != B:
        came = len(pinned_spans) if isinstance(pinned_spans, Sequence) else shown(pinned_spans)
        raise ValueError(f"pinned_spans must hold one list of spans for each of {B} sequences, got {came}")
    for b, spans in enumerate(pinned_spans):
        if not isinstance(spans, Sequence):
            raise ValueError(f"pinned_spans of sequence {b} must be a list of spans, got {shown(spans)}")
        for span in spans:
            if not isinstance(span, Sequence) or [type(end) for end in span] != [int, int]:
                raise ValueError(
                    f"pinned_spans of sequence {b} must be pairs (start, end) of int, got {shown(span)}"
                )
            if max(map(abs, span)) > _LARGEST:
                raise ValueError(f"pinned_spans of sequence {b} goes beyond any sequence: {shown(span)}")
    P = max((len(spans) for spans in pinned_spans), default=0)
    padded = [[*map(list, spans), *[[-1, -1]] * (P - len(spans))] for spans in pinned_spans]
    return torch.tensor(padded, dtype=torch.int64, device="cpu").reshape(B, P, 2)


def _check_range(pins: Tensor, lengths: Tensor) -> None:
    start, end = pins.unbind(-1)  # (B, P)
    right = (start >= 0) & (start < end) & (end <= lengths[:, None])
    wrong = ~right & (pins != -1).any(-1)
    if wrong.any():
        b, p = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"pinned_spans of sequence {b}: {_span(pins[b, p])} must satisfy "
            f"0 <= start < end <= {int(lengths[b])}, the end being exclusive"
        )


def _check_no_crossing(pins: Tensor) -> None:
    start, end = pins.unbind(-1)  # (B, P)
    others, other_ends = start[:, None], end[:, None]
    start, end = start[:, :, None], end[:, :, None]
    crossing = (start < others) & (others < end) & (end < other_ends)  # (B, P, P)
    if crossing.any():
        b, p, q = crossing.nonzero()[0].tolist()
        raise ValueError(
            f"pinned_spans of sequence {b}: {_span(pins[b, p])} and {_span(pins[b, q])} cross; "
            "no tree contains both"
        )


def _span(pin: Tensor) -> tuple[int, int]:
    return int(pin[0]), int(pin[1])
