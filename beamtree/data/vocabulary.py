"""Tokens and their numbers: padding 0, unknown 1, separator 2, then the tokens in the given order."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from beamtree.data.task import Tokens
from beamtree.errors import BeamtreeError
from beamtree.files.atomic import replace_file
from beamtree.files.bounded import read_json, shown
from beamtree.printable import write_json

PAD, UNK, SEP = 0, 1, 2
_SPECIAL = ("<pad>", "<unk>", "<sep>")
FIRST_WORD = len(_SPECIAL)
_LARGEST = 16 << 20  # bytes of a file; 400,000 English words take five million


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that have a number. Its length counts the three special numbers too: 18 for ListOps' 15
    tokens.

    No text has a special number: a word spelt `<pad>` is an unknown word like any other.
    """

    tokens: Tokens
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = {token: number for number, token in enumerate(self.tokens, start=len(_SPECIAL))}
        if len(ids) != len(self.tokens):
            numbered = enumerate(self.tokens, start=len(_SPECIAL))
            twice = next(token for number, token in numbered if ids[token] != number)
            raise BeamtreeError(f"the vocabulary lists {shown(twice)} twice")
        object.__setattr__(self, "_ids", ids)

    def __len__(self) -> int:
        return len(_SPECIAL) + len(self.tokens)

    def __contains__(self, token: str) -> bool:
        return token in self._ids

    def encode(self, tokens: Iterable[str]) -> list[int]:
        """Return the number of each token; unknown ones get UNK."""
        number = self._ids.get
        return [number(token, UNK) for token in tokens]

    def decode(self, ids: Iterable[int]) -> Tokens:
        """Return the token of each number."""
        return tuple(self[number] for number in ids)

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < len(self):
            raise IndexError(f"the vocabulary has numbers 0 to {len(self) - 1}, got {number}")
        return _SPECIAL[number] if number < len(_SPECIAL) else self.tokens[number - len(_SPECIAL)]

    def save(self, path: Path) -> None:
        """Write a JSON list, one token a line; the first has number 3."""
        replace_file(path, write_json(self.tokens, ensure_ascii=False, indent=0) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read what `save` wrote."""
        tokens = read_json(path, largest=_LARGEST)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise BeamtreeError(f"the vocabulary {path} must be a JSON list of strings")
        try:
            return cls(tuple(tokens))
        except BeamtreeError as error:
            raise BeamtreeError(f"{path}: {error}") from None
