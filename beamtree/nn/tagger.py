"""From token vectors to a class each: sequence labelling, masked-token modelling."""

import torch
import torch.nn.functional as F
from torch import Tensor

from beamtree.nn.heads import Perceptron, refuse_one_class


class TaggerHead(Perceptron):
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
        refuse_one_class(classes)
        super().__init__(d_model, d_model, classes, dropout=dropout, device=device, dtype=dtype)


def tag_loss(logits: Tensor, tags: Tensor, is_counted: Tensor) -> Tensor:
    """Mean cross-entropy of the counted tokens, at least in float32; tags and is_counted are (B, n)."""
    logits = logits[is_counted].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, tags[is_counted], reduction="sum") / max(1, len(logits))


def tag_accuracy(logits: Tensor, tags: Tensor, is_counted: Tensor) -> float:
    """The share of counted tokens whose best class is their tag."""
    right = (logits.argmax(-1) == tags) & is_counted
    return float(right.sum()) / max(1, int(is_counted.sum()))
