"""A block as a folder: `config.json` with the options that make it, `model.safetensors` and a model card."""

from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from beamtree.errors import BeamtreeError
from beamtree.saving.folder import (
    CONFIG,
    WEIGHTS,
    bytes_of,
    check_fit,
    check_options,
    filled,
    read_config,
    sizes_of,
    write_card,
    write_config,
)
from beamtree.saving.hub import HubMixin

_KINDS = {"block": (str, "text"), "options": (dict, "a table")}


class SavedBlock(HubMixin, nn.Module):
    """A layer whose constructor's options can be read off it, as plain numbers."""

    def _options(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _make(cls, options: dict[str, Any], dtype: torch.dtype) -> Self:
        return cls(**options, dtype=dtype)

    def _save_folder(self, folder: Path) -> None:
        from beamtree.files.tensors import save_tensors

        write_config(folder, {"block": type(self).__name__, "options": self._options()})
        save_tensors(folder / WEIGHTS, self.state_dict(), {})

    @classmethod
    def _load_folder(cls, folder: Path, device: torch.device | str) -> Self:
        from beamtree.files.tensors import load_tensors

        config = read_config(folder, _KINDS)
        if config["block"] != cls.__name__:
            raise BeamtreeError(f"{folder} holds a {config['block'][:80]}, not a {cls.__name__}")
        check_options(config["options"], f"{folder / CONFIG}: options")
        widest = cls._sizes(config["options"], torch.float64, folder / CONFIG)
        tensors, _ = load_tensors(folder / WEIGHTS, largest=bytes_of(widest))
        dtype = next((tensor.dtype for tensor in tensors.values()), torch.float32)
        wanted = cls._sizes(config["options"], dtype, folder / CONFIG)
        check_fit(wanted, tensors, folder / WEIGHTS, CONFIG)
        return filled(lambda: cls._make(config["options"], dtype), tensors, device)

    @classmethod
    def _sizes(cls, options: dict[str, Any], dtype: torch.dtype, source: Path) -> dict[str, torch.Tensor]:
        try:
            return sizes_of(lambda: cls._make(options, dtype))
        except (TypeError, ValueError, RuntimeError) as error:
            reason = f"its options make no {cls.__name__}: {' '.join(str(error).split())[:300]}"
            raise BeamtreeError(f"{source}: {reason}") from error

    def _card(self) -> str:
        name, options = type(self).__name__, self._options()
        plain = {key: value for key, value in options.items() if not isinstance(value, dict)}
        usage = f'from beamtree import {name}\n\nblock = {name}.from_pretrained("this/repository")'
        says = f"The weights of a `{name}` of beamtree, a PyTorch layer that finds trees in sequences."
        facts = plain | {"parameters": sum(weight.numel() for weight in self.parameters())}
        return write_card(name, says, usage, facts, tags=["tree-induction"])
