"""Classification heads for sentences, pairs and single tokens, with their losses and probabilities.

With two classes a sentence has one logit, σ(logit) = P(class 1); a tagger has one logit per class.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.pytorch.checks import check_mask


class Perceptron(nn.Module):
    """A perceptron with one hidden layer, (…, input_size) -> (…, output_size).

    y = W₂·drop(GELU(W₁·drop(x) + b₁)) + b₂
    """

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
    """Classifies vectors, (B, input_size) -> logits (B, classes), or (B, 1) if there are two classes."""

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
    """Classifies every token, (B, n, d_model) -> logits (B, n, classes).

    ```python
    block, head = BeamTreeContextualizer(128), TaggerHead(128, classes=10)
    logits = head(block(x, key_padding_mask=is_pad))  # (B, n, 10)
    ```

    It is a perceptron with a hidden layer of width `d_model`: W₂·drop(GELU(W₁·drop(x) + b₁)) + b₂.

    Args:
        d_model: width of a token.
        classes: number of classes, at least 2.
        dropout: dropout rate on the input and on the hidden layer.
    """

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
    """Return [a; b; a⊙b; |a−b|] for the vectors of two sentences, (B, d) each -> (B, 4d)."""
    return torch.cat((first, second, first * second, (first - second).abs()), -1)


def class_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of every example, (B, classes or 1) and class ids (B,) -> (B,), at least in float32."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits.shape[-1] == 1:
        one = logits.squeeze(-1)
        return F.binary_cross_entropy_with_logits(one, labels.to(one.dtype), reduction="none")
    return F.cross_entropy(logits, labels, reduction="none")


def predicted_classes(logits: Tensor) -> Tensor:
    """Return class ids (B,) from logits (B, classes or 1); of two classes the second if σ(logit) ≥ 0.5."""
    if logits.shape[-1] == 1:
        return (logits.squeeze(-1) >= 0).long()
    return logits.argmax(-1)


def class_probabilities(logits: Tensor) -> Tensor:
    """Return the probabilities (B, classes) from logits (B, classes or 1), at least in float32."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if logits.shape[-1] == 1:
        return torch.cat(((-logits).sigmoid(), logits.sigmoid()), -1)
    return logits.softmax(-1)


def tag_loss(logits: Tensor, tags: Tensor, is_counted: Tensor) -> Tensor:
    """Return the mean cross-entropy of the counted tokens, at least in float32.

    `tags` and `is_counted` are (B, n), and `is_counted` is a bool mask, True at the tokens that count.
    """
    check_mask(is_counted, logits, "is_counted", "tokens that count", "logits")
    logits = logits[is_counted].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, tags[is_counted], reduction="sum") / max(1, len(logits))


def tag_accuracy(logits: Tensor, tags: Tensor, is_counted: Tensor) -> float:
    """Return the share of the counted tokens whose most probable class is their tag."""
    check_mask(is_counted, logits, "is_counted", "tokens that count", "logits")
    right = (logits.argmax(-1) == tags) & is_counted
    return float(right.sum()) / max(1, int(is_counted.sum()))
