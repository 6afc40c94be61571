"""From vectors to classes, of sentences or pairs and of single tokens, with losses and probabilities.

Two classes of sentences share one logit, σ(logit) = P(class 1); a tagger has a logit per class.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Perceptron(nn.Module):
    """W₂·drop(GELU(W₁·drop(x) + b₁)) + b₂, (…, input_size) -> (…, output_size)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int,
        *,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(input_size, hidden_size, device=device, dtype=dtype)
        self.out = nn.Linear(hidden_size, output_size, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.dropout(F.gelu(self.hidden(self.dropout(x)))))
        return y


class ClassifierHead(Perceptron):
    """(B, input_size) -> logits: (B, classes), or (B, 1) where there are two classes."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        classes: int,
        *,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        refuse_one_class(classes)
        outputs = 1 if classes == 2 else classes
        super().__init__(input_size, hidden_size, outputs, dropout=dropout, device=device, dtype=dtype)


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


def refuse_one_class(classes: int) -> None:
    if classes < 2:
        raise ValueError(f"classes must be at least 2, got {classes}")


def pair_features(first: Tensor, second: Tensor) -> Tensor:
    """[a; b; a⊙b; |a−b|] of two sentences' vectors, (B, d) each -> (B, 4d)."""
    return torch.cat((first, second, first * second, (first - second).abs()), -1)


def class_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of every example, (B, classes or 1) and class ids (B,) -> (B,), at least in float32."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits.shape[-1] == 1:
        one = logits.squeeze(-1)
        return F.binary_cross_entropy_with_logits(one, labels.to(one.dtype), reduction="none")
    return F.cross_entropy(logits, labels, reduction="none")


def predicted_classes(logits: Tensor) -> Tensor:
    """(B, classes or 1) -> class ids (B,); of two classes the second, iff σ(logit) ≥ 0.5."""
    if logits.shape[-1] == 1:
        return (logits.squeeze(-1) >= 0).long()
    return logits.argmax(-1)


def class_probabilities(logits: Tensor) -> Tensor:
    """(B, classes or 1) -> (B, classes), at least in float32."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits.shape[-1] == 1:
        return torch.cat(((-logits).sigmoid(), logits.sigmoid()), -1)
    return logits.softmax(-1)


def tag_loss(logits: Tensor, tags: Tensor, is_counted: Tensor) -> Tensor:
    """Mean cross-entropy of the counted tokens, at least in float32; tags and is_counted are (B, n)."""
    logits = logits[is_counted].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, tags[is_counted], reduction="sum") / max(1, len(logits))


def tag_accuracy(logits: Tensor, tags: Tensor, is_counted: Tensor) -> float:
    """The share of counted tokens whose best class is their tag."""
    right = (logits.argmax(-1) == tags) & is_counted
    return float(right.sum()) / max(1, int(is_counted.sum()))
