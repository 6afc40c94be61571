"""`from_pretrained`, `save_pretrained` and `push_to_hub`, as in Hugging Face's libraries.

A block is saved as a folder: `config.json` with its constructor's options, `model.safetensors` and a model
card. Only downloads and uploads need `huggingface_hub`.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch
from torch import nn

from beamtree.errors import BeamtreeError, MissingExtraError, first_line
from beamtree.files.atomic import make_folder, replace_file
from beamtree.files.bounded import is_folder, shown
from beamtree.files.tensors import load_tensors, save_tensors
from beamtree.saving.folder import (
    CARD,
    CONFIG,
    WEIGHTS,
    bytes_of,
    check_fit,
    check_options,
    make_with_weights,
    read_config,
    sizes_of,
    write_card,
    write_config,
)

_FILES = ["*.json", "*.safetensors", CARD]  # all that is downloaded; none of it is code
_KINDS = {"block": (str, "text"), "options": (dict, "a table")}


class HubMixin:
    """Adds saving, loading and the hub to a class that defines the four methods below."""

    def _save_folder(self, folder: Path) -> None:
        raise NotImplementedError

    @classmethod
    def _load_folder(cls, folder: Path, device: torch.device | str) -> Self:
        raise NotImplementedError

    @classmethod
    def _find_folder(cls, path_or_name: str | Path) -> Path | None:
        """Return the local folder of this name, if there is one."""
        path = Path(path_or_name)
        return path if is_folder(path) else None

    def _card(self) -> str:
        """Return the model card, Markdown with a YAML head."""
        raise NotImplementedError

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        push_to_hub: bool = False,
        repo_id: str | None = None,
        **push_options: Any,
    ) -> str | None:
        """Write the folder, with a model card unless it has one; with `push_to_hub`, also upload it."""
        folder = Path(save_directory)
        make_folder(folder)
        self._save_folder(folder)
        if not (folder / CARD).exists():
            replace_file(folder / CARD, self._card())
        return self.push_to_hub(repo_id or folder.name, **push_options) if push_to_hub else None

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        device: torch.device | str = "cpu",
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        force_download: bool = False,
    ) -> Self:
        """Load a model from a folder or from a repository `owner/name` on the hub, in evaluation mode."""
        folder = cls._find_folder(pretrained_model_name_or_path)
        if folder is None:
            folder = _download(
                str(pretrained_model_name_or_path),
                revision=revision,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
                force_download=force_download,
            )
        return cls._load_folder(folder, device)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Upload a beamtree model",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Upload the model as one commit, creating the repository if needed; return the commit's address."""
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise MissingExtraError("push_to_hub", "hub") from error
        try:
            hub = HfApi(token=token)
            repo_id = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
            with TemporaryDirectory() as folder:
                self.save_pretrained(folder)
                commit = hub.upload_folder(
                    repo_id=repo_id,
                    folder_path=folder,
                    commit_message=commit_message,
                    revision=branch,
                    create_pr=create_pr,
                )
            return str(commit)
        except BeamtreeError:
            raise
        except Exception as error:  # the HTTP library may raise anything
            raise BeamtreeError(f"cannot push to {repo_id!r}: {first_line(error)}") from error


def _download(repo_id: str, **options: Any) -> Path:
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise BeamtreeError(
            f"there is no folder {shown(repo_id)}, and it is not a repository on the hub: their names are "
            "owner/name"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        purpose = f"there is no folder {shown(repo_id)}, and downloading it from the hub"
        raise MissingExtraError(purpose, "hub") from error
    try:
        return Path(snapshot_download(repo_id, allow_patterns=_FILES, **options))
    except Exception as error:  # the HTTP library may raise anything
        raise BeamtreeError(
            f"there is no folder {shown(repo_id)}, and it could not be downloaded: {first_line(error)}"
        ) from error


class SavedBlock(HubMixin, nn.Module):
    """A layer that can be made again from its constructor's options and its weights."""

    def _options(self) -> dict[str, Any]:
        """Return the constructor's options as JSON values."""
        raise NotImplementedError

    @classmethod
    def _make(cls, options: dict[str, Any], dtype: torch.dtype) -> Self:
        return cls(**options, dtype=dtype)

    def _save_folder(self, folder: Path) -> None:
        options, tensors = self._options(), self.state_dict()
        try:
            check_fit(self._sizes(options, _dtype_of(tensors), folder), tensors, folder / WEIGHTS, CONFIG)
        except BeamtreeError as error:
            raise BeamtreeError(
                f"from_pretrained could not load this block: {error}; remove parametrizations and convert "
                "all weights to one dtype, or save its state_dict() instead"
            ) from error
        write_config(folder, {"block": type(self).__name__, "options": options})
        save_tensors(folder / WEIGHTS, tensors, {})

    @classmethod
    def _load_folder(cls, folder: Path, device: torch.device | str) -> Self:
        config = read_config(folder, _KINDS)
        if config["block"] != cls.__name__:
            raise BeamtreeError(f"{folder} holds a {config['block'][:80]}, not a {cls.__name__}")
        check_options(config["options"], f"{folder / CONFIG}: options")
        widest = cls._sizes(config["options"], torch.float64, folder / CONFIG)
        tensors, _ = load_tensors(folder / WEIGHTS, largest=bytes_of(widest))
        dtype = _dtype_of(tensors)
        check_fit(cls._sizes(config["options"], dtype, folder / CONFIG), tensors, folder / WEIGHTS, CONFIG)
        return make_with_weights(lambda: cls._make(config["options"], dtype), tensors, device)

    @classmethod
    def _sizes(cls, options: dict[str, Any], dtype: torch.dtype, source: Path) -> dict[str, torch.Tensor]:
        try:
            return sizes_of(lambda: cls._make(options, dtype))
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise BeamtreeError(
                f"{source}: cannot make a {cls.__name__} with its options: {reason}"
            ) from error

    def _card(self) -> str:
        name, options = type(self).__name__, self._options()
        plain = {key: value for key, value in options.items() if not isinstance(value, dict)}
        usage = f'from beamtree import {name}\n\nblock = {name}.from_pretrained("this/repository")'
        says = f"The weights of a `{name}` of beamtree, a PyTorch layer that finds trees in sequences."
        facts = plain | {"parameters": sum(weight.numel() for weight in self.parameters())}
        return write_card(name, says, usage, facts, tags=["tree-induction"])


def _dtype_of(tensors: Mapping[str, torch.Tensor]) -> torch.dtype:
    return next((tensor.dtype for tensor in tensors.values()), torch.float32)
