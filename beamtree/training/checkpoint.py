"""The complete state of a run in a safetensors file: weights, optimiser, schedule, position, random state."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from beamtree.errors import BeamtreeError
from beamtree.files.atomic import make_folder
from beamtree.files.bounded import shown
from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.saving.folder import bytes_of
from beamtree.training.schedule import Schedule

FORMAT = 1
_MOST_COPIES = 8  # of the weights: themselves, their average, the optimiser's state
_RANDOM_STATES = 64 << 20  # bytes; a process needs some 5,000


@dataclass
class Position:
    """How far a run has come."""

    data: str  # checksum of the examples
    epochs: int = 0  # finished
    steps: int = 0  # optimiser steps of the current epoch
    total_steps: int = 0
    epoch_seconds: float = 0.0  # of the current epoch
    history: list[dict[str, Any]] = field(default_factory=list)


def save_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    averaged: nn.Module | None = None,
    optimizer: Optimizer,
    schedule: Schedule,
    position: Position,
    by_process: dict[str, Tensor],
) -> None:
    """Replace the checkpoint in one rename. `by_process` tensors have one row per process."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    if averaged is not None:
        tensors |= {f"averaged.{name}": tensor for name, tensor in averaged.state_dict().items()}
    tensors |= {f"process.{name}": tensor for name, tensor in by_process.items()}
    optimizer_state = optimizer.state_dict()
    numbers: dict[str, dict[str, Any]] = {}
    for index, state in optimizer_state["state"].items():
        numbers[str(index)] = {}
        for name, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                numbers[str(index)][name] = value
    notes = {
        "format": FORMAT,
        "position": asdict(position),
        "schedule": schedule.state(),
        "optimizer": {"numbers": numbers, "groups": optimizer_state["param_groups"]},
    }
    make_folder(path.parent)
    save_tensors(path, tensors, notes)


def load_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    averaged: nn.Module | None = None,
    optimizer: Optimizer,
    schedule: Schedule,
    data: str | None = None,
) -> tuple[Position, dict[str, Tensor]]:
    """Restore a run; return its position and the tensors with one row per process.

    `data` is the checksum of the present examples: a run must not continue with other ones.
    """
    tensors, notes = load_tensors(path, largest=_MOST_COPIES * bytes_of(model.state_dict()) + _RANDOM_STATES)
    if notes.get("format") != FORMAT:
        raise BeamtreeError(
            f"{path} has checkpoint format {shown(notes.get('format'))}; "
            f"this version of beamtree reads {FORMAT}"
        )
    match notes:  # checked first: with other words the weights do not fit either, but that is only a symptom
        case {"position": {"data": str(begun_with)}} if data not in (None, begun_with):
            raise BeamtreeError(
                f"cannot resume {path.parent.parent}: its data have changed since it began, or an older "
                "version of beamtree held out other rows for dev; put the old files back, or start a new run "
                "with --out"
            )
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "averaged": {}, "optimizer": {}, "process": {}}
    try:
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = tensor
        position = _position(notes["position"])
        _check_process(parts["process"])
        model.load_state_dict(parts["model"])
        if averaged is not None:
            averaged.load_state_dict(parts["averaged"])
        state = _optimizer_state(parts["optimizer"], notes["optimizer"])
        for group, own in zip(state["param_groups"], optimizer.param_groups, strict=False):
            if "fused" in group and "fused" in own:  # how a step is launched, on a GPU or a CPU
                group["fused"] = own["fused"]
        _check_optimizer(state, optimizer)
        optimizer.load_state_dict(state)
        schedule.restore(notes["schedule"])
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        raise BeamtreeError(f"{path} does not fit the model of the run's recipe.toml: {reason}") from error
    return position, parts["process"]


def _position(notes: dict[str, Any]) -> Position:
    position = Position(**notes)
    counts = (position.epochs, position.steps, position.total_steps)
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"epochs and steps must be whole numbers, got {shown(counts)}")
    if type(position.data) is not str or type(position.epoch_seconds) is not float:
        raise ValueError("data must be a checksum and epoch_seconds a number")
    records = [(record["epoch"], record["best"]) for record in position.history]
    if not all(type(epoch) is int and epoch > 0 and type(best) is bool for epoch, best in records):
        raise ValueError("history must hold a record of every epoch")
    return position


def _check_process(tensors: dict[str, Tensor]) -> None:
    """Check that there is one row per process: the bytes of its random states, and its two sums."""
    random, sums = tensors["random"], tensors["sums"]
    kinds = [(tensor.dtype, tensor.dim()) for tensor in (random, sums)]
    if kinds != [(torch.uint8, 2), (torch.float64, 2)]:
        raise ValueError(f"process.random and process.sums must be tables of bytes and float64, got {kinds}")
    least = torch.get_rng_state().numel()
    if not len(sums) == len(random) > 0 or sums.shape[1] != 2 or random.shape[1] < least:
        raise ValueError(f"process.random is {tuple(random.shape)}, process.sums {tuple(sums.shape)}")


def _check_optimizer(state: dict[str, Any], optimizer: Optimizer) -> None:
    """Check the state: optimisers accept any, and would fail only at their first step."""
    own = optimizer.state_dict()["param_groups"]
    if _kinds(state["param_groups"]) != _kinds(own):
        raise ValueError("its optimiser has other settings")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor) and value.ndim == 0:  # AdamW counts its steps in a tensor
                fits = name == "step" and value.item() > 0
            elif isinstance(value, Tensor):
                fits = value.shape == parameters[index].shape and value.dtype == parameters[index].dtype
            else:
                fits = type(value) is int and value > 0
            if not fits or index < 0:
                raise ValueError(f"optimizer.{index}.{name} does not fit its parameter")


def _kinds(value: Any) -> Any:
    """The types in tables and lists; tuples count as lists, into which JSON turns them."""
    if isinstance(value, dict):
        return {key: _kinds(entry) for key, entry in value.items()}
    return list(map(_kinds, value)) if isinstance(value, (list, tuple)) else type(value)


def _optimizer_state(tensors: dict[str, Tensor], notes: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {
        int(index): dict(numbers) for index, numbers in notes["numbers"].items()
    }
    for name, tensor in tensors.items():
        index, _, rest = name.partition(".")
        state[int(index)][rest] = tensor
    return {"state": state, "param_groups": notes["groups"]}


def random_state(device: torch.device) -> Tensor:
    """The states of the generators that a process draws from, as one row of bytes."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: Tensor, device: torch.device) -> None:
    # Cloned, because torch misreads a state that does not begin where its storage begins.
    size = torch.get_rng_state().numel()
    torch.set_rng_state(state[:size].clone())
    if device.type == "cuda" and state.numel() > size:
        torch.cuda.set_rng_state(state[size:].clone(), device)
