"""`from_pretrained`, `save_pretrained`, `push_to_hub` by Hugging Face's conventions, in beamtree's folders.

A folder needs nothing but this package; `huggingface_hub` is imported only where the hub itself is asked.
"""

from pathlib import Path
from typing import Any, Self

import torch

from beamtree.errors import BeamtreeError, MissingExtraError, first_line
from beamtree.files.atomic import make_folder, replace_file
from beamtree.files.bounded import is_folder, shown
from beamtree.saving.folder import CARD

_FILES = ["*.json", "*.safetensors", CARD]  # nothing in a folder is code


class HubMixin:
    """For a class of models that says how one is written to a folder, read from it and described."""

    def _save_folder(self, folder: Path) -> None:
        raise NotImplementedError

    @classmethod
    def _load_folder(cls, folder: Path, device: torch.device | str) -> Self:
        raise NotImplementedError

    @classmethod
    def _find_folder(cls, path_or_name: str | Path) -> Path | None:
        """The folder on this machine that is meant, if any."""
        path = Path(path_or_name)
        return path if is_folder(path) else None

    def _card(self) -> str:
        """The model card, Markdown with a YAML head."""
        raise NotImplementedError

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        push_to_hub: bool = False,
        repo_id: str | None = None,
        **push_options: Any,
    ) -> str | None:
        """Write the folder, and a model card where there is none yet; with `push_to_hub` upload it too."""
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
        """The model of a folder, or of a repository `owner/name` of the hub; evaluating."""
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
        commit_message: str = "Upload a model by beamtree",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
    ) -> str:
        """Upload the folder as one commit, in a repository that is made if need be; returns its address."""
        save = self.save_pretrained
        try:
            from huggingface_hub import ModelHubMixin
        except ImportError as error:
            raise MissingExtraError("push_to_hub", "hub") from error

        class Upload(ModelHubMixin):
            def _save_pretrained(self, save_directory: Path) -> None:
                save(save_directory)

        options: dict[str, Any] = {
            "private": private,
            "token": token,
            "branch": branch,
            "create_pr": create_pr,
        }
        try:
            return str(Upload().push_to_hub(repo_id, commit_message=commit_message, **options))
        except BeamtreeError:
            raise
        except Exception as error:  # those of the HTTP library come through as they are
            raise BeamtreeError(f"cannot push to {repo_id!r}: {first_line(error)}") from error


def _download(repo_id: str, **options: Any) -> Path:
    if repo_id.count("/") != 1 or not all(repo_id.split("/")):
        raise BeamtreeError(f"there is no folder {shown(repo_id)}, and a repository of the hub is owner/name")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        purpose = f"there is no folder {shown(repo_id)}, and asking the hub for it"
        raise MissingExtraError(purpose, "hub") from error
    try:
        return Path(snapshot_download(repo_id, allow_patterns=_FILES, **options))
    except Exception as error:  # those of the HTTP library come through as they are
        raise BeamtreeError(
            f"there is no folder {shown(repo_id)}, and the hub did not give it: {first_line(error)}"
        ) from error
