"""Token ids → vectors, padding zero, then dropout of features: learnt rows ~ N(0, 1), or ready-made vectors.

An embedding is a module from ids (B, n) to vectors (B, n, output_size), zero where the id is `padding_id`;
the classifier asks nothing else of it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.data.vocabulary import FIRST_WORD, PAD, UNK
from beamtree.data.words import Words


def create_embedding(
    words: Words, size: int, *, projected_to: int | None = None, dropout: float = 0.0
) -> "TrainableEmbedding | WordEmbedding | ProjectedEmbedding":
    """Of ready-made vectors where the words have them, else `size` learnt features; projected if wished."""
    inner_dropout = dropout if projected_to is None else 0.0
    if words.vectors is None:
        embedding: TrainableEmbedding | WordEmbedding = TrainableEmbedding(
            len(words.vocabulary), size, padding_id=PAD, dropout=inner_dropout
        )
    else:
        embedding = WordEmbedding(words.vectors, words.learnt, dropout=inner_dropout)
    return embedding if projected_to is None else ProjectedEmbedding(embedding, projected_to, dropout=dropout)


class TrainableEmbedding(nn.Module):
    """Every row is learnt, but for that of the padding, which stays zero."""

    def __init__(
        self,
        vocabulary_size: int,
        output_size: int,
        *,
        padding_id: int = 0,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.table = nn.Embedding(
            vocabulary_size, output_size, padding_idx=padding_id, device=device, dtype=dtype
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:  # (B, n) -> (B, n, output_size)
        vectors: Tensor = self.dropout(self.table(ids))
        return vectors


class WordEmbedding(nn.Module):
    """Ready-made vectors that stay as they are; one vector for unknown words and those of frequent words that
    have none ready are learnt.

    Ids: the padding, the unknown word, the separator, words with `vectors` (rows in order), words to learn.
    The unknown word begins as N(0, 1), the others as spread as the ready-made vectors.
    """

    def __init__(
        self,
        vectors: Tensor,
        learnt_words: int,
        *,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        count, self.output_size = vectors.shape
        self.first_learnt = FIRST_WORD + count
        specials = vectors.new_zeros(FIRST_WORD, self.output_size)
        self.register_buffer("table", torch.cat((specials, vectors)).to(device))
        self.table: Tensor
        self.learnt = nn.Embedding(1 + learnt_words, self.output_size, device=device, dtype=dtype)
        if count > 1 and not (vectors.is_meta or self.learnt.weight.is_meta):
            with torch.no_grad():
                self.learnt.weight[1:] *= vectors.float().std()
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:  # (B, n) -> (B, n, output_size)
        row = torch.where(ids == UNK, 0, ids - self.first_learnt + 1)
        is_learnt = (ids == UNK) | (ids >= self.first_learnt)
        learnt = self.learnt(row.clamp(min=0))
        # Half-precision tables are widened after the look-up, token by token.
        fixed = F.embedding(ids.masked_fill(is_learnt, PAD), self.table).to(learnt.dtype)
        vectors: Tensor = self.dropout(torch.where(is_learnt.unsqueeze(-1), learnt, fixed))
        return vectors


class ProjectedEmbedding(nn.Module):
    """A learnt linear map after another embedding, which itself drops nothing; padding stays zero."""

    def __init__(
        self,
        embedding: TrainableEmbedding | WordEmbedding,
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

    def forward(self, ids: Tensor) -> Tensor:  # (B, n) -> (B, n, output_size)
        projected = self.projection(self.inner(ids)).masked_fill((ids == PAD).unsqueeze(-1), 0.0)
        vectors: Tensor = self.dropout(projected)
        return vectors
