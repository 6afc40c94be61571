"""Cells and scorers as a user might write them, and what tests compare of an encoder with them."""

from typing import Any

import torch
from torch import Tensor, nn

from beamtree import BeamTreeEncoder

D = 6


class MeanCell(nn.Module):
    """A plain multilayer perceptron."""

    def __init__(self, d_model: int = D, *, dropout: float = 0.0, **kind: Any) -> None:
        super().__init__()
        self.hidden_size, self.dropout = 2 * d_model, dropout
        self.hidden = nn.Linear(2 * d_model, self.hidden_size, **kind)
        self.out = nn.Linear(self.hidden_size, d_model, **kind)

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        hidden = torch.relu(self.hidden(torch.cat((left, right), -1)))
        return torch.tanh(self.out(hidden if keep is None else hidden * keep))


class GatedSum(nn.Module):
    """As a Tree-LSTM: half of a node is its memory, the other half what it shows."""

    def __init__(self, d_model: int = D, *, dropout: float = 0.0, **kind: Any) -> None:
        super().__init__()
        self.hidden_size, self.dropout = d_model // 2, dropout
        self.gates = nn.Linear(d_model, 5 * (d_model // 2), **kind)

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        (c1, h1), (c2, h2) = left.chunk(2, -1), right.chunk(2, -1)
        i, f1, f2, o, u = self.gates(torch.cat((h1, h2), -1)).chunk(5, -1)
        u = torch.tanh(u) if keep is None else torch.tanh(u) * keep
        c = f1.sigmoid() * c1 + f2.sigmoid() * c2 + i.sigmoid() * u
        return torch.cat((c, o.sigmoid() * torch.tanh(c)), -1)


class InPlace(MeanCell):
    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        left *= self.out.bias
        return super().forward(left, right, keep)


class DotScorer(nn.Module):
    def __init__(self, d_model: int = D, **kind: Any) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(d_model, **kind))
        self.temperature = 1.0

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (left * self.scale * right).sum(-1) / self.temperature


def make_encoder(
    cell: type[nn.Module] | None = MeanCell,
    scorer: type[nn.Module] | None = DotScorer,
    *,
    d_model: int = D,
    dropout: float = 0.0,
    beam_size: int = 3,
    **kind: Any,
) -> BeamTreeEncoder:
    """With dropout it is noisy too."""
    torch.manual_seed(0)
    kind = kind or {"dtype": torch.float64}
    options = {} if cell is not None else {"dropout": dropout}
    return BeamTreeEncoder(
        d_model,
        beam_size=beam_size,
        stochastic=dropout > 0.0,
        cell=cell(d_model, dropout=dropout, **kind) if cell is not None else None,
        scorer=scorer(d_model, **kind) if scorer is not None else None,
        **options,
        **kind,
    ).train()


def make_input(lengths: list[int], d_model: int = D, **kind: Any) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    kind = kind or {"dtype": torch.float64}
    x = torch.randn(len(lengths), max(lengths), d_model, requires_grad=True, **kind)
    is_padding = (
        torch.arange(max(lengths), device=x.device) >= torch.tensor(lengths, device=x.device)[:, None]
    )
    return x, is_padding


def gradients(encoder: nn.Module, x: Tensor, is_padding: Tensor, **options: object) -> list[Tensor]:
    """The root, the trees, and the gradients of everything, for the same random numbers each time."""
    torch.manual_seed(2)
    root, trees = encoder(x, is_padding, need_trees=True, **options)
    weights = torch.randn(root.shape, generator=torch.Generator().manual_seed(3)).to(root)
    loss = (root * weights).sum() + trees.weights[:, 0].sum()
    wanted = [x, *encoder.parameters()]
    found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return [root, trees.merges, trees.log_scores.detach(), *found]
