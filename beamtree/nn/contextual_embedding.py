"""The embedding of a classifier whose token vectors come from a frozen Hugging Face encoder."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from beamtree.data.batching import EncodedExamples
from beamtree.data.hugging_face import HuggingFaceEncoder
from beamtree.data.vocabulary import FIRST_WORD, PAD
from beamtree.nn.subwords import OUTSIDE, SubwordsToWords

Row = NDArray[np.int64]  # the subwords of a text

_SUBWORDS_AT_ONCE = 4096  # with padding, in one pass of the encoder


class ContextualEmbedding(nn.Module):
    """Subwords (B, s), numbered as by `HuggingFaceEncoder.encode`, to vectors of words (B, n, output_size).

    The encoder stays as it is: it is not among the weights, and never drops anything. A vector has mean 0 and
    deviation 1, whatever the encoder's scale. In training a share of the words is dropped.
    """

    def __init__(
        self, encoder: HuggingFaceEncoder, *, dropout: float = 0.0, word_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.encoder, self.output_size, self.word_dropout = encoder, encoder.width, word_dropout
        self.pool = SubwordsToWords()
        self.dropout = nn.Dropout(dropout)

    def padding(self, ids: Tensor) -> Tensor:
        """(B, n), True where a row has no more words."""
        counts = begins_word(ids).sum(1, keepdim=True)
        return torch.arange(int(counts.max()), device=ids.device) >= counts

    def look_up(self, ids: Tensor) -> Tensor:
        known = self.encoder.remembered
        rows = [row[row != PAD] for row in ids.cpu().numpy()]
        found = [known.get(row.tobytes()) for row in rows]
        missing = [place for place, vectors in enumerate(found) if vectors is None]
        for some in self._read([rows[place] for place in missing], ids.device):
            for place, vectors in some:
                found[missing[place]] = vectors
        where = ids.device if missing else "cpu"  # what is remembered goes to a GPU in one piece
        x = pad_sequence([one.to(where) for one in found if one is not None], batch_first=True)
        x = x.to(ids.device)
        if self.training and self.word_dropout:
            dropped = torch.rand(x.shape[:2], device=ids.device) < self.word_dropout
            x = x.masked_fill(dropped.unsqueeze(-1), 0.0)
        return x

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.dropout(self.look_up(ids))
        return vectors

    def unread(self, splits: Sequence[EncodedExamples]) -> list[Row]:
        """The different texts of the splits whose vectors are not remembered yet."""
        rows = {row.tobytes(): row for split in splits for row in _rows_of(split)}
        return [row for key, row in rows.items() if key not in self.encoder.remembered]

    def bytes_of(self, rows: Sequence[Row]) -> int:
        """What their vectors take in memory."""
        return 4 * self.output_size * sum(int(begins_word(torch.from_numpy(row)).sum()) for row in rows)

    def remember(
        self, rows: Sequence[Row], device: torch.device, advance: Callable[[int], None] = lambda done: None
    ) -> None:
        """Read texts once and keep their vectors; `advance` hears how many are done."""
        done = 0
        for some in self._read(rows, device):
            self.encoder.remembered |= {rows[place].tobytes(): vectors.cpu() for place, vectors in some}
            done += len(some)
            advance(done)

    @torch.no_grad()
    def _read(self, rows: Sequence[Row], device: torch.device) -> Iterator[list[tuple[int, Tensor]]]:
        """(place, vectors (n, d)) of every row, the shortest first, so many at a time as are read at once."""
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        while order:
            longest = [len(rows[place]) + 2 for place in order[:_SUBWORDS_AT_ONCE]]
            fit = sum(size * count <= _SUBWORDS_AT_ONCE for count, size in enumerate(longest, start=1))
            some, order = order[: max(fit, 1)], order[max(fit, 1) :]
            ids = pad_sequence([torch.from_numpy(rows[place]) for place in some], batch_first=True)
            ids = ids.to(device)
            with torch.autocast(device.type, enabled=False):
                subwords = self._encode([rows[place] for place in some], device)
                word_ids = begins_word(ids).cumsum(1).sub(1).masked_fill(ids == PAD, OUTSIDE)
                words, padding = self.pool(subwords, word_ids)
                words = F.layer_norm(words, words.shape[-1:])
            yield [(place, x[~empty]) for place, x, empty in zip(some, words, padding, strict=True)]

    def _encode(self, rows: Sequence[Row], device: torch.device) -> Tensor:
        """Vectors of all subwords (B, s, d); a row that the encoder cannot read at once is read in parts."""
        encoder = self.encoder
        network = encoder.network.to(device)
        subwords = [(torch.from_numpy(row) - FIRST_WORD) // 2 for row in rows]
        parts = [part for row in subwords for part in row.split(encoder.room)]
        before, after = torch.tensor(encoder.before).long(), torch.tensor(encoder.after).long()
        framed = [torch.cat((before, part, after)) for part in parts]
        ids = pad_sequence(framed, batch_first=True, padding_value=encoder.pad)
        mask = pad_sequence([torch.ones_like(one) for one in framed], batch_first=True)
        found = network(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
        inside = [one[len(before) : len(before) + len(part)] for one, part in zip(found, parts, strict=True)]
        sizes = [-(-len(row) // encoder.room) for row in rows]
        pieces = iter(inside)
        whole = [torch.cat([next(pieces) for _ in range(size)]) for size in sizes]
        return pad_sequence(whole, batch_first=True).float()


def begins_word(ids: Tensor) -> Tensor:
    """Which subwords are the first of their word."""
    return (ids >= FIRST_WORD) & ((ids - FIRST_WORD) % 2 == 1)


def _rows_of(split: EncodedExamples) -> Iterator[Row]:
    for start, length in zip(split.starts.reshape(-1), split.lengths.reshape(-1), strict=True):
        yield split.tokens[start : start + length].astype(np.int64)
