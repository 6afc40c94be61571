"""A Hugging Face encoder that gives tokens their vectors: where it is, its tokenizer, its weights.

The encoder's tokenizer splits words as text with blanks between them; every word has at least one subword. In
batches, subword s has number 2s or, at the start of a word, 2s + 1, counted from FIRST_WORD. Code in a model
folder is never run, and weights are read only from safetensors.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

from torch import Tensor, nn

from beamtree.data.vocabulary import FIRST_WORD, Vocabulary
from beamtree.errors import BeamtreeError, MissingExtraError, first_line
from beamtree.files.bounded import hash_files, is_file, is_folder, shown

_READ = (
    *("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "*.model", "*.safetensors"),
)
_DOWNLOADED = [*_READ, "*.safetensors.index.json"]
_MOST_AT_ONCE = 512  # subwords; longer texts are read in parts
_OWN_POSITIONS = 2  # positions that some encoders (RoBERTa) reserve
_SAFE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


class HuggingFaceEncoder:
    """An encoder as `find_encoder` returns it; its weights are read on first use."""

    def __init__(self, place: str, folder: Path, sha256: str) -> None:
        transformers = _transformers()
        self.place, self.folder, self.sha256 = place, folder, sha256
        with _reading(transformers, f"the encoder in {folder} cannot be read"):
            self._config = transformers.AutoConfig.from_pretrained(folder, **_SAFE)
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_SAFE)
            self.width, rows = int(self._config.hidden_size), int(self._config.vocab_size)
        if not tokenizer.is_fast:
            raise BeamtreeError(
                f"the tokenizer in {folder} is not a fast one, so it cannot tell which subwords belong to "
                "which word: choose an encoder with a tokenizer.json"
            )
        self._tokenizer = tokenizer.backend_tokenizer
        if max(self._tokenizer.get_vocab().values(), default=0) >= rows:
            raise BeamtreeError(
                f"the tokenizer in {folder} has subwords without a vector: the encoder has {rows:,} vectors"
            )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        known = (tokenizer.unk_token_id, tokenizer.mask_token_id, tokenizer.pad_token_id)
        self._unknown: int = next((number for number in known if number is not None), 0)
        self.pad: int = tokenizer.pad_token_id or 0
        probe = self._tokenizer.encode("a", add_special_tokens=True)
        first = probe.special_tokens_mask.index(0)
        last = len(probe.ids) - probe.special_tokens_mask[::-1].index(0)
        self.before, self.after = probe.ids[:first], probe.ids[last:]  # around a text; BERT: [CLS] and [SEP]
        positions = getattr(self._config, "max_position_embeddings", None) or _MOST_AT_ONCE
        most = min(positions - _OWN_POSITIONS, tokenizer.model_max_length, _MOST_AT_ONCE)
        self.room = int(most) - len(self.before) - len(self.after)
        if self.room < 1:
            raise BeamtreeError(f"the encoder in {folder} reads {most} subwords at once, which is too few")
        self.remembered: dict[bytes, Tensor] = {}  # vectors of texts that are read repeatedly
        self._lock = Lock()
        self._network: nn.Module | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "HuggingFaceEncoder":
        return self  # it never learns

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return find_encoder, (self.place, self.sha256)

    def encode(self, words: Sequence[str]) -> list[int]:
        """Return the numbers of the words' subwords, as in a batch."""
        # Where each word ends; the blank after it belongs to the next word.
        ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
        read = self._tokenizer.encode(" ".join(words), add_special_tokens=False)
        dropped = _number_of(self._unknown, True)  # stands for a word that the tokenizer drops
        numbers: list[int] = []
        word = -1  # index of the last word with a number
        for subword, (start, end) in zip(read.ids, read.offsets, strict=True):
            at = min(bisect_right(ends, max(end - 1, start)), len(words) - 1)
            numbers += [dropped] * (at - word - 1)
            numbers.append(_number_of(subword, at > word))
            word = max(word, at)
        return numbers + [dropped] * (len(words) - 1 - word)

    @property
    def network(self) -> nn.Module:
        """The model, evaluating and without gradients: token ids and mask -> `last_hidden_state`."""
        with self._lock:
            if self._network is None:
                self._network = self._load()
            return self._network

    def _load(self) -> nn.Module:
        transformers = _transformers()
        with _reading(transformers, f"the weights in {self.folder} cannot be read"):
            model, report = transformers.AutoModel.from_pretrained(
                self.folder, use_safetensors=True, output_loading_info=True, **_SAFE
            )
        # The pooler is not used, and many encoders are saved without it.
        missing = sorted(name for name in report["missing_keys"] if "pooler" not in name)
        if missing:
            raise BeamtreeError(f"the weights in {self.folder} do not fit its config: they lack {missing[0]}")
        if self._config.is_encoder_decoder:
            model = model.get_encoder()
        network: nn.Module = model.float().eval().requires_grad_(False)
        return network


class SubwordVocabulary(Vocabulary):
    """The vocabulary of an encoder's tokenizer, which knows every word and has no list of them."""

    def __init__(self, encoder: HuggingFaceEncoder) -> None:
        super().__init__(())
        object.__setattr__(self, "encoder", encoder)

    encoder: HuggingFaceEncoder

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubwordVocabulary) and self.encoder.sha256 == other.encoder.sha256

    def __hash__(self) -> int:
        return hash(self.encoder.sha256)

    def __contains__(self, token: str) -> bool:
        return True

    def encode(self, tokens: Iterable[str]) -> list[int]:
        return self.encoder.encode(list(tokens))


def _number_of(subword: int, begins_word: bool) -> int:
    return FIRST_WORD + 2 * subword + begins_word


def find_encoder(place: str, sha256: str | None = None, *, download: bool = False) -> HuggingFaceEncoder:
    """Return the encoder in a folder or of a hub repository, which may be downloaded now if `download`.

    With `sha256`, its files must have this checksum; otherwise it is an error before anything is loaded.
    """
    folder = Path(os.path.expanduser(place))
    if not is_folder(folder):
        folder = _from_hub(place, download)
    files = _files(folder)
    stamps = tuple((os.stat(file).st_mtime_ns, os.stat(file).st_size) for file in files)
    found = _checksum(tuple(files), stamps)
    if sha256 is not None and found != sha256:
        raise BeamtreeError(
            f"the encoder in {folder} has changed: its checksum is {found[:12]}, and the model was trained "
            f"with {shown(sha256[:12])}"
        )
    return _opened(place, folder, found)


@lru_cache(maxsize=4)
def _checksum(files: tuple[Path, ...], stamps: tuple[tuple[int, int], ...]) -> str:
    return hash_files(*files)


# Models share one encoder as long as its files do not change.
_opened = lru_cache(maxsize=4)(HuggingFaceEncoder)


def _files(folder: Path) -> list[Path]:
    """Return the files that the encoder consists of."""
    if not is_file(folder / "config.json"):
        raise BeamtreeError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    found = sorted(file for pattern in _READ for file in folder.glob(pattern))
    if not any(file.suffix == ".safetensors" for file in found):
        raise BeamtreeError(
            f"{folder} has no .safetensors file, and pickled weights are not read: save the model again "
            "with save_pretrained of a recent transformers"
        )
    return found


def _from_hub(place: str, download: bool) -> Path:
    if place.startswith((".", "/", "~")) or place.count("/") > 1:
        raise BeamtreeError(f"there is no folder {shown(place, most=400)} with a Hugging Face encoder")
    _transformers()
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(place, allow_patterns=_DOWNLOADED, local_files_only=not download))
    except Exception as error:  # huggingface_hub lets those of its HTTP library through
        remedy = f": {first_line(error)}" if download else f"; to get it from the hub: hf download {place}"
        raise BeamtreeError(
            f"there is no folder {shown(place, most=400)}, and no downloaded encoder of this name{remedy}"
        ) from error


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("reading tokens with a Hugging Face encoder", "transformers") from error
    return transformers


@contextmanager
def _reading(transformers: Any, failure: str) -> Iterator[None]:
    """Silence transformers' progress bars and remarks; errors inside the block become a BeamtreeError."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:  # transformers raises all kinds
        raise BeamtreeError(f"{failure}: {first_line(error)}") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
