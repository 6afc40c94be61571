"""Token ids → vectors: a table of rows ~ N(0, 1), padding zero, then dropout of features.

An embedding is a module from ids (B, n) to vectors (B, n, output_size), zero where the id is `padding_id`;
the classifier asks nothing else of it.
"""

import torch
from torch import Tensor, nn


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
