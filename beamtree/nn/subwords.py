"""Vectors of subwords, as Hugging Face encoders give them, to vectors of words, which trees are over."""

from typing import Any

import torch
from torch import Tensor, nn

OUTSIDE = -1  # the word of a special token, or of padding


class SubwordsToWords(nn.Module):
    """The mean of each word's subwords: vectors (B, s, d) and word ids (B, s) -> (B, n, d), padding (B, n).

    Word ids count from 0 in every row and are −1 at special tokens and padding. A word that has no subword
    gets a vector of zeros. The layer has no weights.
    """

    def forward(self, x: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
        if x.dim() != 3 or word_ids.shape != x.shape[:2]:
            raise ValueError(
                f"word_ids must have a number for each of x's subwords, got shapes {tuple(word_ids.shape)} "
                f"and {tuple(x.shape)}"
            )
        counts = word_ids.amax(1, keepdim=True) + 1  # (B, 1)
        places = torch.arange(int(counts.max()), device=x.device)  # (n,)
        belongs = (word_ids.unsqueeze(1) == places.unsqueeze(1)).to(x.dtype)  # (B, n, s)
        shares = belongs / belongs.sum(-1, keepdim=True).clamp(min=1)
        return shares @ x, places >= counts

    @staticmethod
    def word_ids(encoding: Any) -> Tensor:
        """(B, s) of what a fast tokenizer of transformers returns for a list of texts."""
        if not getattr(encoding, "is_fast", False):
            raise ValueError("only fast tokenizers, those with a tokenizer.json, tell words apart")
        rows = range(len(encoding["input_ids"]))
        words = [[OUTSIDE if word is None else word for word in encoding.word_ids(row)] for row in rows]
        return torch.tensor(words)
