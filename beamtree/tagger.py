"""From token vectors to a class each: sequence labelling, masked-token modelling."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TaggerHead(nn.Module):
    """W₂·drop(GELU(W₁·drop(x) + b₁)) + b₂ at every token: (B, n, d) -> logits (B, n, classes)."""

    def __init__(
        self,
        d_model: int,
        classes: int,
        *,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if classes < 2:
            raise ValueError(f"classes must be at least 2, got {classes}")
        self.hidden = nn.Linear(d_model, d_model, device=device, dtype=dtype)
        self.out = nn.Linear(d_model, classes, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.out(self.dropout(F.gelu(self.hidden(self.dropout(tokens)))))
        return logits


def tag_loss(logits: Tensor, tags: Tensor, is_counted: Tensor) -> Tensor:
    """Mean cross-entropy of the counted tokens, at least in float32; tags and is_counted are (B, n)."""
    logits = logits[is_counted].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, tags[is_counted], reduction="sum") / max(1, len(logits))


def tag_accuracy(logits: Tensor, tags: Tensor, is_counted: Tensor) -> float:
    """The share of counted tokens whose best class is their tag."""
    right = (logits.argmax(-1) == tags) & is_counted
    return float(right.sum()) / max(1, int(is_counted.sum()))
