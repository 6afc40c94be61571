"""Stores tensors and JSON notes in one safetensors file with a checksum; nothing is pickled.

The file is replaced by a single rename, so readers see either the old content or the new, never a mixture.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from beamtree.errors import BeamtreeError, first_line
from beamtree.files.atomic import replace_file
from beamtree.files.bounded import machine_memory, opened, parse_json, shown
from beamtree.printable import write_json

_LARGEST_HEADER = 8 << 20  # bytes; the header of a checkpoint after 1,000 epochs has 1 million


def save_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write tensors and `notes` (any JSON object) to a file, atomically."""
    from safetensors.torch import save

    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = write_json(notes)
    # Under a single key, because safetensors writes several keys in an order that varies from run to run.
    metadata = {"beamtree": write_json({"notes": text, "sha256": _checksum(flat, text)})}
    replace_file(path, save(flat, metadata))


def load_tensors(path: Path, *, largest: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, on the CPU, and the notes.

    Raises `BeamtreeError` if the file is damaged, was not written by `save_tensors`, or holds NaN or
    infinities. Files with more than `largest` bytes of tensors (by default the machine's memory) are refused
    unread.
    """
    from safetensors import SafetensorError, safe_open

    with opened(path, _LARGEST_HEADER + (machine_memory() if largest is None else largest)) as start:
        if int.from_bytes(start.read(8), "little") > _LARGEST_HEADER:
            raise BeamtreeError(f"{path} is damaged: its header claims more than {_LARGEST_HEADER:,} bytes")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = parse_json((file.metadata() or {}).get("beamtree", "null"), str(path))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except BeamtreeError:
            raise
        except (SafetensorError, ValueError, TypeError, RuntimeError, MemoryError) as error:
            reason = first_line(error)
            raise BeamtreeError(f"{path} is damaged or not a safetensors file: {reason}") from error
    match metadata:
        case {"notes": str(text), "sha256": str(checksum)}:
            if _checksum(tensors, text) != checksum:
                raise BeamtreeError(f"{path} is damaged: its content does not match its checksum")
            notes = parse_json(text, str(path))
            if isinstance(notes, dict):
                _refuse_unless_finite(tensors, path)
                return tensors, notes
    raise BeamtreeError(f"{path} has no checksum: it was not written by beamtree")


def _refuse_unless_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            ends = torch.stack(tensor.aminmax() if tensor.element_size() > 1 else tensor.float().aminmax())
            if not ends.isfinite().all():  # minimum and maximum are NaN if any value is
                raise BeamtreeError(
                    f"{path}: the tensor {shown(name)} holds numbers that are not finite: use weights that "
                    "were saved earlier"
                )


def _checksum(tensors: Mapping[str, Tensor], notes: str) -> str:
    digest = hashlib.sha256(notes.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
