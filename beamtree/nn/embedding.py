"""Embeddings: token ids (B, n) → vectors (B, n, output_size), zero at padding, with dropout of features.

Vectors are learnt rows that start as N(0, 1), pretrained word vectors, or the output of a frozen Hugging Face
encoder, for which a word has several ids. In training, words may be dropped too: they are replaced by the
unknown word, so that its vector is trained.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from beamtree.data.batching import EncodedExamples
from beamtree.data.hugging_face import HuggingFaceEncoder
from beamtree.data.vocabulary import FIRST_WORD, PAD, UNK
from beamtree.data.words import ShippedRows, Words
from beamtree.nn.stacks import OUTSIDE, SubwordsToWords

Row = NDArray[np.int64]  # the subword ids of a text

_SUBWORDS_AT_ONCE = 4096  # in one pass of the encoder, padding included


def create_embedding(
    words: Words,
    size: int,
    *,
    projected_to: int | None = None,
    dropout: float = 0.0,
    word_dropout: float = 0.0,
) -> "Embedding":
    """Make an embedding for `words`: their frozen encoder or pretrained vectors, else learnt rows.

    Args:
        words: the vocabulary, with its encoder or its word vectors if there are any.
        size: width of learnt rows; an encoder and pretrained vectors have a width of their own.
        projected_to: map the vectors to this width by a learnt linear map.
        dropout: dropout rate on features, after the projection if there is one.
        word_dropout: share of the words that are dropped in training.
    """
    rates = {"dropout": dropout if projected_to is None else 0.0, "word_dropout": word_dropout}
    embedding: Embedding
    if words.encoder is not None:
        embedding = ContextualEmbedding(words.encoder, **rates)
    elif words.vectors is None:
        embedding = TrainableEmbedding(len(words.vocabulary), size, **rates)
    else:
        embedding = WordEmbedding(
            words.vectors, words.learnt, starts=words.starts, shipped=words.shipped, **rates
        )
    return embedding if projected_to is None else ProjectedEmbedding(embedding, projected_to, dropout=dropout)


class Embedding(nn.Module):
    """Base class of embeddings: `forward` is `dropout(look_up(ids))`.

    The two are separate so that the classifier can pool vectors before features are dropped.
    """

    def __init__(self, output_size: int, dropout: float, word_dropout: float = 0.0) -> None:
        super().__init__()
        self.output_size, self.word_dropout = output_size, word_dropout
        self.dropout = nn.Dropout(dropout)

    def padding(self, ids: Tensor) -> Tensor:
        """Return the padding mask (B, n), True where there is no token."""
        return ids == PAD

    def look_up(self, ids: Tensor) -> Tensor:
        """Return the vectors (B, n, output_size), zero at padding, before dropout of features."""
        raise NotImplementedError

    def drop_words(self, ids: Tensor) -> Tensor:
        """In training, replace a random share of the words by the unknown word."""
        if not self.training or not self.word_dropout:
            return ids
        dropped = (torch.rand(ids.shape, device=ids.device) < self.word_dropout) & (ids >= FIRST_WORD)
        return ids.masked_fill(dropped, UNK)

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.dropout(self.look_up(ids))
        return vectors


class TrainableEmbedding(Embedding):
    """An embedding whose rows are all learnt, except the row of the padding, which stays zero."""

    def __init__(
        self, vocabulary_size: int, output_size: int, *, dropout: float = 0.0, word_dropout: float = 0.0
    ) -> None:
        super().__init__(output_size, dropout, word_dropout)
        self.table = nn.Embedding(vocabulary_size, output_size, padding_idx=PAD)

    def look_up(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.table(self.drop_words(ids))
        return vectors


class WordEmbedding(Embedding):
    """Fixed, pretrained word vectors; the vectors of the unknown word and of some other words are learnt.

    Ids, in this order: padding, the unknown word, the separator, words with fixed `vectors`, words with
    learnt vectors, and words of the vectors that come with the package, whose 8-bit rows are not saved with
    the weights.

    Args:
        vectors: (words, width), fixed.
        learnt_words: how many words have a learnt vector. The unknown word starts as N(0, 1), these start as
            `starts`, and any others as random vectors with the standard deviation of the pretrained ones.
        starts: initial vectors of the first of the learnt words.
        shipped: the rows of the vectors that come with the package.
        dropout: dropout rate on features.
        word_dropout: share of the words that are replaced by the unknown word in training.
    """

    def __init__(
        self,
        vectors: Tensor,
        learnt_words: int,
        *,
        starts: Tensor | None = None,
        shipped: ShippedRows | None = None,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__(vectors.shape[1], dropout, word_dropout)
        self.first_learnt = FIRST_WORD + len(vectors)
        self.first_shipped = self.first_learnt + learnt_words
        specials = vectors.new_zeros(FIRST_WORD, self.output_size)
        self.register_buffer("table", torch.cat((specials, vectors)))
        self.table: Tensor
        self.has_shipped = shipped is not None
        if shipped is not None:
            self.register_buffer("shipped_numbers", shipped.numbers, persistent=False)
            self.register_buffer("shipped_scales", shipped.scales, persistent=False)
        self.shipped_numbers: Tensor
        self.shipped_scales: Tensor
        self.learnt = nn.Embedding(1 + learnt_words, self.output_size)
        if not (vectors.is_meta or self.learnt.weight.is_meta):
            self._begin(vectors, starts, shipped)

    @torch.no_grad()
    def _begin(self, vectors: Tensor, starts: Tensor | None, shipped: ShippedRows | None) -> None:
        """Set the initial values of the learnt rows."""
        known = vectors.float() if starts is None else torch.cat((vectors.float(), starts))
        if not len(known) and shipped is not None:
            known = shipped.numbers * shipped.scales[:, None]
        if len(known) > 1:
            self.learnt.weight[1:] *= known.std()
        if starts is not None:
            self.learnt.weight[1 : 1 + len(starts)] = starts

    def look_up(self, ids: Tensor) -> Tensor:
        ids = self.drop_words(ids)
        row = torch.where(ids == UNK, 0, ids - self.first_learnt + 1)
        is_learnt = (ids == UNK) | (ids >= self.first_learnt)
        learnt = self.learnt(row.clamp(0, self.learnt.num_embeddings - 1))
        # A half-precision table is converted after the look-up, only for the tokens of the batch.
        fixed = F.embedding(ids.masked_fill(ids >= self.first_learnt, PAD), self.table).to(learnt.dtype)
        vectors = torch.where(is_learnt.unsqueeze(-1), learnt, fixed)
        if self.has_shipped:
            place = (ids - self.first_shipped).clamp(min=0)
            ready = self.shipped_numbers[place] * self.shipped_scales[place].unsqueeze(-1)
            vectors = torch.where((ids >= self.first_shipped).unsqueeze(-1), ready.to(vectors.dtype), vectors)
        return vectors


class ProjectedEmbedding(Embedding):
    """A learnt linear map after another embedding, which must not drop features; padding stays zero."""

    def __init__(self, embedding: Embedding, output_size: int, *, dropout: float = 0.0) -> None:
        super().__init__(output_size, dropout)
        self.inner = embedding
        self.projection = nn.Linear(embedding.output_size, output_size)

    def padding(self, ids: Tensor) -> Tensor:
        return self.inner.padding(ids)

    def look_up(self, ids: Tensor) -> Tensor:
        return self.projection(self.inner(ids)).masked_fill(self.padding(ids).unsqueeze(-1), 0.0)


class ContextualEmbedding(Embedding):
    """Vectors of words (B, n, output_size) from a frozen encoder that reads subword ids (B, s).

    Ids are numbered as by `HuggingFaceEncoder.encode`. The encoder is not saved with the weights and applies
    no dropout. Each word's vector is normalised to mean 0 and deviation 1. In training, dropped words become
    vectors of zeros.
    """

    def __init__(
        self, encoder: HuggingFaceEncoder, *, dropout: float = 0.0, word_dropout: float = 0.0
    ) -> None:
        super().__init__(encoder.width, dropout, word_dropout)
        self.encoder = encoder
        self.pool = SubwordsToWords()

    def padding(self, ids: Tensor) -> Tensor:
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
        where = ids.device if missing else "cpu"  # remembered vectors are copied to a GPU in one piece
        x = pad_sequence([one.to(where) for one in found if one is not None], batch_first=True)
        x = x.to(ids.device)
        if self.training and self.word_dropout:
            dropped = torch.rand(x.shape[:2], device=ids.device) < self.word_dropout
            x = x.masked_fill(dropped.unsqueeze(-1), 0.0)
        return x

    def unread(self, splits: Sequence[EncodedExamples]) -> list[Row]:
        """Return the distinct texts of the splits whose vectors are not remembered yet."""
        rows = {row.tobytes(): row for split in splits for row in _rows_of(split)}
        return [row for key, row in rows.items() if key not in self.encoder.remembered]

    def bytes_of(self, rows: Sequence[Row]) -> int:
        """Return how many bytes of memory the vectors of these texts take."""
        return 4 * self.output_size * sum(int(begins_word(torch.from_numpy(row)).sum()) for row in rows)

    def remember(
        self, rows: Sequence[Row], device: torch.device, advance: Callable[[int], None] = lambda done: None
    ) -> None:
        """Encode the texts and keep their vectors; `advance` is called with the number done so far."""
        done = 0
        for some in self._read(rows, device):
            self.encoder.remembered |= {rows[place].tobytes(): vectors.cpu() for place, vectors in some}
            done += len(some)
            advance(done)

    @torch.no_grad()
    def _read(self, rows: Sequence[Row], device: torch.device) -> Iterator[list[tuple[int, Tensor]]]:
        """Yield lists of (index of a row, its vectors (n, d)), shortest first, one list per encoder pass."""
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
        """Return the vectors of all subwords (B, s, d); a row too long for the encoder is read in parts."""
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
    """Return True for subwords that are the first of their word."""
    return (ids >= FIRST_WORD) & ((ids - FIRST_WORD) % 2 == 1)


def _rows_of(split: EncodedExamples) -> Iterator[Row]:
    for start, length in zip(split.starts.reshape(-1), split.lengths.reshape(-1), strict=True):
        yield split.tokens[start : start + length].astype(np.int64)
