"""The gated recursive cell, which composes two children into a parent.

u = keep · GELU(W₁ [l; r] + b₁)
[a; b; g; c] = W₂ u + b₂
parent = LayerNorm(σ(a)·l + σ(b)·r + σ(g)·c)
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.pytorch.checks import at_least_one, check_rates
from beamtree.pytorch.direct_reading import DirectlyRead, read_norm, read_part
from beamtree.pytorch.precision import layer_norm_wide


class GatedRecursiveCell(DirectlyRead):
    """Composes left and right children, (…, d) each, into parents, (…, d).

    ```python
    cell = GatedRecursiveCell(128)
    parents = cell(left, right)  # (rows, 128), (rows, 128) -> (rows, 128)
    ```

    The cell is a pure function of its arguments. Its dropout mask is passed in as `keep`, because a mask
    belongs to a node: code that recomputes a node in the backward pass must pass the same mask again.

    Args:
        d_model: width of a node.
        hidden_size: width of the hidden layer, 4·d_model if not given.
        dropout: dropout rate on the hidden layer, used by `draw_keep`.
    """

    def __init__(
        self,
        d_model: int,
        *,
        hidden_size: int | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        at_least_one(d_model=d_model)
        check_rates(dropout=dropout)
        self.d_model = d_model
        self.hidden_size = 4 * d_model if hidden_size is None else hidden_size
        self.dropout = dropout
        self.w1 = nn.Linear(2 * d_model, self.hidden_size, device=device, dtype=dtype)
        self.w2 = nn.Linear(self.hidden_size, 4 * d_model, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(d_model, device=device, dtype=dtype)

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the parents (…, d); `keep` (…, hidden_size) is a dropout mask, already scaled by 1/(1−p)."""
        wide = torch.promote_types(left.dtype, torch.float32)
        pair = torch.cat((left, right), -1)  # (…, 2d)
        hidden = F.gelu(F.linear(pair, *read_part(self.w1)).to(wide)).to(left.dtype)  # (…, 4d)
        if keep is not None:
            hidden = hidden * keep
        gates = F.linear(hidden, *read_part(self.w2))  # (…, 4d)
        return layer_norm_wide(gate(gates, left, right), self.norm)

    def weights(self) -> list[Tensor]:
        """Return W₁, b₁, W₂, b₂, and the norm's weight and bias, for code that does not call the cell."""
        return [*read_part(self.w1), *read_part(self.w2), *read_norm(self.norm)]

    def draw_keep(self, *shape: int, generator: torch.Generator | None = None) -> Tensor | None:
        """Draw a dropout mask (*shape, hidden_size); None in evaluation mode or without dropout."""
        if not self.training or self.dropout == 0.0:
            return None
        weight = self.w1.weight
        kept = 1.0 - self.dropout
        keep = torch.empty(*shape, self.hidden_size, device=weight.device, dtype=weight.dtype)
        return keep.bernoulli_(kept, generator=generator).div_(kept)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, hidden_size={self.hidden_size}, dropout={self.dropout}"


def gate(gates: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return σ(a)·l + σ(b)·r + σ(g)·c, at least in float32 whatever the precision of the products."""
    wide = torch.promote_types(left.dtype, torch.float32)
    to_left, to_right, to_content, content = gates.to(wide).chunk(4, -1)
    return to_left.sigmoid() * left + to_right.sigmoid() * right + to_content.sigmoid() * content
