"""Token ids → vectors, padding zero, then dropout of features: learnt rows ~ N(0, 1), or ready-made vectors.

In training whole words may be dropped too: they are read as the unknown word, which so learns its vector.

An embedding is a module from ids (B, n) to vectors (B, n, output_size), zero where the id is `padding_id`:
`dropout(look_up(ids))`, so that the classifier can pool vectors before features are dropped. `padding(ids)`
tells where there is no token; `ContextualEmbedding` (`contextual_embedding.py`) reads several ids a token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.data.vocabulary import FIRST_WORD, PAD, UNK
from beamtree.data.words import ShippedRows, Words
from beamtree.nn.contextual_embedding import ContextualEmbedding


def create_embedding(
    words: Words,
    size: int,
    *,
    projected_to: int | None = None,
    dropout: float = 0.0,
    word_dropout: float = 0.0,
) -> "Unprojected | ProjectedEmbedding":
    """Of ready-made vectors where the words have them, else `size` learnt features; projected if wished."""
    inner_dropout = dropout if projected_to is None else 0.0
    embedding: Unprojected
    if words.encoder is not None:
        embedding = ContextualEmbedding(words.encoder, dropout=inner_dropout, word_dropout=word_dropout)
    elif words.vectors is None:
        embedding = TrainableEmbedding(
            len(words.vocabulary), size, padding_id=PAD, dropout=inner_dropout, word_dropout=word_dropout
        )
    else:
        embedding = WordEmbedding(
            words.vectors,
            words.learnt,
            starts=words.starts,
            shipped=words.shipped,
            dropout=inner_dropout,
            word_dropout=word_dropout,
        )
    return embedding if projected_to is None else ProjectedEmbedding(embedding, projected_to, dropout=dropout)


def drop_words(ids: Tensor, share: float, training: bool) -> Tensor:
    """In training a share of the words, drawn at random, is read as the unknown word."""
    if not training or not share:
        return ids
    dropped = (torch.rand(ids.shape, device=ids.device) < share) & (ids >= FIRST_WORD)
    return ids.masked_fill(dropped, UNK)


class TrainableEmbedding(nn.Module):
    """Every row is learnt, but for that of the padding, which stays zero."""

    def __init__(
        self,
        vocabulary_size: int,
        output_size: int,
        *,
        padding_id: int = 0,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.output_size, self.word_dropout = output_size, word_dropout
        self.table = nn.Embedding(
            vocabulary_size, output_size, padding_idx=padding_id, device=device, dtype=dtype
        )
        self.padding_id = padding_id
        self.dropout = nn.Dropout(dropout)

    def padding(self, ids: Tensor) -> Tensor:
        return ids == self.padding_id

    def look_up(self, ids: Tensor) -> Tensor:  # (B, n) -> (B, n, output_size)
        vectors: Tensor = self.table(drop_words(ids, self.word_dropout, self.training))
        return vectors

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.dropout(self.look_up(ids))
        return vectors


class WordEmbedding(nn.Module):
    """Ready-made vectors; one for unknown words and those of words that learn theirs are parameters.

    Ids: the padding, the unknown word, the separator, words with `vectors` that stay as they are (rows in
    order), words that learn, words of the package, whose 8-bit rows are not among the weights. The unknown
    word begins as N(0, 1); of those that learn the first begin as `starts`, the others as spread as the
    ready-made vectors.
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        count, self.output_size = vectors.shape
        self.word_dropout = word_dropout
        self.first_learnt = FIRST_WORD + count
        self.first_shipped = self.first_learnt + learnt_words
        specials = vectors.new_zeros(FIRST_WORD, self.output_size)
        self.register_buffer("table", torch.cat((specials, vectors)).to(device))
        self.table: Tensor
        self.has_shipped = shipped is not None
        if shipped is not None:
            self.register_buffer("shipped_numbers", shipped.numbers.to(device), persistent=False)
            self.register_buffer("shipped_scales", shipped.scales.to(device), persistent=False)
        self.shipped_numbers: Tensor
        self.shipped_scales: Tensor
        self.learnt = nn.Embedding(1 + learnt_words, self.output_size, device=device, dtype=dtype)
        if not (vectors.is_meta or self.learnt.weight.is_meta):
            self._begin(vectors, starts, shipped)
        self.dropout = nn.Dropout(dropout)

    @torch.no_grad()
    def _begin(self, vectors: Tensor, starts: Tensor | None, shipped: ShippedRows | None) -> None:
        """The first values of the rows that learn."""
        known = vectors.float() if starts is None else torch.cat((vectors.float(), starts))
        if not len(known) and shipped is not None:
            known = shipped.numbers * shipped.scales[:, None]
        if len(known) > 1:
            self.learnt.weight[1:] *= known.std()
        if starts is not None:
            self.learnt.weight[1 : 1 + len(starts)] = starts

    def padding(self, ids: Tensor) -> Tensor:
        return ids == PAD

    def look_up(self, ids: Tensor) -> Tensor:  # (B, n) -> (B, n, output_size)
        ids = drop_words(ids, self.word_dropout, self.training)
        row = torch.where(ids == UNK, 0, ids - self.first_learnt + 1)
        is_learnt = (ids == UNK) | (ids >= self.first_learnt)
        learnt = self.learnt(row.clamp(0, self.learnt.num_embeddings - 1))
        # Half-precision tables are widened after the look-up, token by token.
        fixed = F.embedding(ids.masked_fill(ids >= self.first_learnt, PAD), self.table).to(learnt.dtype)
        vectors = torch.where(is_learnt.unsqueeze(-1), learnt, fixed)
        if self.has_shipped:
            place = (ids - self.first_shipped).clamp(min=0)
            ready = self.shipped_numbers[place] * self.shipped_scales[place].unsqueeze(-1)
            vectors = torch.where((ids >= self.first_shipped).unsqueeze(-1), ready.to(vectors.dtype), vectors)
        return vectors

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.dropout(self.look_up(ids))
        return vectors


class ProjectedEmbedding(nn.Module):
    """A learnt linear map after another embedding, which itself drops nothing; padding stays zero."""

    def __init__(
        self,
        embedding: "Unprojected",
        output_size: int,
        *,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.inner = embedding
        self.projection = nn.Linear(embedding.output_size, output_size, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def padding(self, ids: Tensor) -> Tensor:
        return self.inner.padding(ids)

    def look_up(self, ids: Tensor) -> Tensor:  # (B, n) -> (B, n, output_size)
        return self.projection(self.inner(ids)).masked_fill(self.padding(ids).unsqueeze(-1), 0.0)

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.dropout(self.look_up(ids))
        return vectors


Unprojected = TrainableEmbedding | WordEmbedding | ContextualEmbedding
