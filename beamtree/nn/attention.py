"""Gated attention (paper, appendix "GAU-Block"), between the tokens of a sequence, and from tokens to the
inner nodes of a tree above them.

    x' = LayerNorm(W₀ x)      u = SiLU(W_u x')      v = SiLU(W_v p')      z = SiLU(W_z ·)
    A = softmax((q·k + q̃·E[distance]) / √(2h))      q, q̃, k = γ⊙z + δ, each with its own γ and δ
    o = dropout(W_o (u ⊙ A v))      g = σ(W_g [o; x])      out = g⊙o + (1 − g)⊙x
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.nn.leaf import LeafTransform
from beamtree.pytorch.checks import at_least_one, check_form, padding_of, zero_at_padding
from beamtree.pytorch.direct_reading import read_part
from beamtree.pytorch.tracing import is_compiling, is_exporting, runs_eagerly
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.forest import DENSE_UP_TO, Ancestry, find_ancestry

HEAD_SIZE = 128
MAX_HEIGHT = 10
SCALE_DEVIATION = 0.02
_ALL, _QUERIES, _KEY = slice(None), slice(-1), slice(-1, None)  # roles: one or two queries, then the key


class GatedAttention(nn.Module):
    """Base class of both kinds: the parameters, the projections of the input and the gated output.

    Args:
        d_model: width of a token.
        distances: number of distances, each with an embedding of its own.
        head_size: width h of queries and keys; `d_model`, but at most 128, if not given.
        scalar_bias: follow the paper's text instead of the published code: one number per distance instead of
            q̃·E, and √(2d) instead of √(2h).
        dropout: dropout rate on what attention adds to a token.
    """

    def __init__(
        self,
        d_model: int,
        distances: int,
        *,
        head_size: int | None = None,
        scalar_bias: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        at_least_one(d_model=d_model)
        h = min(HEAD_SIZE, d_model) if head_size is None else head_size
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.d_model, self.head_size, self.scalar_bias = d_model, h, scalar_bias
        self.init = LeafTransform(d_model, d_model, **factory)
        self.u = nn.Linear(d_model, 2 * d_model, **factory)
        self.v = nn.Linear(d_model, 2 * d_model, **factory)
        self.z = nn.Linear(d_model, h, **factory)
        roles = 2 if scalar_bias else 3  # query, the query used against distances, key
        self.z_scale = nn.Parameter(torch.empty(roles, h, **factory))
        self.z_offset = nn.Parameter(torch.empty(roles, h, **factory))
        self.relative = nn.Parameter(torch.empty(distances, 1 if scalar_bias else h, **factory))
        self.reset_parameters()
        self.out = nn.Linear(2 * d_model, d_model, **factory)
        self.gate = nn.Linear(2 * d_model, d_model, **factory)
        self.dropout = nn.Dropout(dropout)
        self.scale = 1.0 / math.sqrt(2 * (d_model if scalar_bias else h))

    def reset_parameters(self) -> None:
        """Initialise this module's own parameters; called by PyTorch's sharded training after `to_empty`."""
        nn.init.normal_(self.z_scale, std=SCALE_DEVIATION)
        nn.init.zeros_(self.z_offset)
        nn.init.normal_(self.relative)

    def in_roles(self, read: Tensor, roles: slice) -> Tensor:
        """Compute γ⊙z + δ for these roles from x' (…, d): (…, roles, h)."""
        z = F.silu(self.z(read)).unsqueeze(-2)
        scale, offset = self.z_scale[roles], self.z_offset[roles]
        return torch.addcmul(offset, z, scale) if z.dtype == scale.dtype else z * scale + offset

    def as_queries(self, read: Tensor) -> Tensor:
        """Compute the queries for keys and for distances from x' (…, d), concatenated: (…, 2h or h + 1)."""
        query = self.in_roles(read, _QUERIES).flatten(-2)
        return F.pad(query, (0, 1), value=1.0) if self.scalar_bias else query

    def as_keys(self, read: Tensor) -> Tensor:
        """Compute keys (…, h) from p' (…, d)."""
        return self.in_roles(read, _KEY).squeeze(-2)

    def as_values(self, read: Tensor) -> Tensor:
        """Compute values (…, 2d) from p' (…, d)."""
        return F.silu(self.v(read))

    def leave(self, x: Tensor, read: Tensor, mixed: Tensor) -> Tensor:
        """Compute the output from x (…, d), x' (…, d) and A v (…, 2d); x may be broadcast over beams."""
        o = self.dropout(self.out(F.silu(self.u(read)) * mixed))
        weight, bias = read_part(self.gate)
        to_o, to_x = weight.split(self.d_model, 1)
        g = (F.linear(o, to_o, bias) + F.linear(x, to_x)).sigmoid()
        return (x + g * (o - x)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, head_size={self.head_size}, scalar_bias={self.scalar_bias}"


class GatedAttentionUnit(GatedAttention):
    """Gated attention between all tokens of a sequence, (B, n, d) → (B, n, d).

    ```python
    unit = GatedAttentionUnit(128)
    y = unit(x, is_pad)  # (B, n, 128), (B, n) -> (B, n, 128)
    ```

    Args:
        d_model: width of a token.
        max_distance: greater distances between tokens count as this one.
        head_size: width h of queries and keys; `d_model`, but at most 128, if not given.
        scalar_bias: one number per distance instead of a vector, as in the paper's text.
        dropout: dropout rate on what attention adds to a token.
    """

    def __init__(
        self,
        d_model: int,
        *,
        max_distance: int = 5,
        head_size: int | None = None,
        scalar_bias: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shared: dict[str, Any] = {"head_size": head_size, "scalar_bias": scalar_bias, "dropout": dropout}
        super().__init__(d_model, 2 * max_distance + 1, **shared, device=device, dtype=dtype)
        self.max_distance = max_distance

    def forward(
        self, x: Tensor, key_padding_mask: Tensor | None = None, *, positions: Tensor | None = None
    ) -> Tensor:
        """Attend between the tokens of x (B, n, d); returns (B, n, d).

        `key_padding_mask` (B, n) is True at padding, which may be anywhere. If it is not all on the right,
        give the `positions` (B, n) of the tokens, from which distances are computed.
        """
        check_form(x, key_padding_mask, input_size=self.d_model, weight=self.z_scale)
        B, n, _ = x.shape
        x = zero_at_padding(x, key_padding_mask)
        if positions is None:
            positions = torch.arange(n, device=x.device).expand(B, n)
        read = self.init(x)
        *queries, key = self.in_roles(read, _ALL).unbind(-2)
        query_for_distance = torch.ones_like(key[..., :1]) if self.scalar_bias else queries[1]
        value = self.as_values(read)
        distance = positions[:, None, :] - positions[:, :, None]  # (B, n, n)
        row = distance.clamp(-self.max_distance, self.max_distance) + self.max_distance
        by_distance = (query_for_distance @ self.relative.T).gather(2, row)  # (B, n, n)
        scores = (queries[0] @ key.transpose(1, 2) + by_distance) * self.scale
        mixed = masked_softmax(scores, ~padding_of(x, key_padding_mask)[:, None]).to(value.dtype) @ value
        return self.leave(x, read, mixed)


class ParentAttention(GatedAttention):
    """Gated attention from each leaf to its ancestors in a tree; the nodes themselves do not change.

    The height of an ancestor takes the place of a distance; heights above 10 count as 10.

    Args:
        d_model: width of a leaf and of a node.
        attend_self: let a leaf also attend to itself, at height 0, as in the paper's text.
        head_size: width h of queries and keys; `d_model`, but at most 128, if not given.
        scalar_bias: one number per height instead of a vector, as in the paper's text.
        dropout: dropout rate on what attention adds to a leaf.
    """

    def __init__(
        self,
        d_model: int,
        *,
        attend_self: bool = False,
        head_size: int | None = None,
        scalar_bias: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        shared: dict[str, Any] = {"head_size": head_size, "scalar_bias": scalar_bias, "dropout": dropout}
        super().__init__(d_model, MAX_HEIGHT + attend_self, **shared, device=device, dtype=dtype)
        self.attend_self = attend_self

    def forward(
        self,
        leaves: Tensor,  # (B, n, d)
        nodes: Tensor,  # (B, K, n−1, d)
        trees: BeamTrees,
        *,
        refinements: int = 1,
        ancestry: Ancestry | None = None,
    ) -> Tensor:  # (B, K, n, d)
        """Contextualise the leaves with each tree, applying the attention `refinements` times.

        `ancestry` says which nodes are a leaf's ancestors; it is computed from `trees` if not given.
        """
        is_compiled = is_compiling() and not is_exporting()
        attend = self._attend_eagerly if is_compiled and leaves.shape[1] > DENSE_UP_TO else self._attend
        return attend(leaves, nodes, trees, refinements, ancestry)

    def _attend(
        self, leaves: Tensor, nodes: Tensor, trees: BeamTrees, refinements: int, ancestry: Ancestry | None
    ) -> Tensor:
        ancestry = find_ancestry(trees) if ancestry is None else ancestry
        key, value = self.keys_of_nodes(nodes, trees)
        # In the first round the leaves are the same in all trees, so their share is computed only once.
        x = leaves.unsqueeze(1)
        for _ in range(refinements):
            read = self.init(x)
            weights = self.weights(read, key, ancestry).to(value.dtype)
            mixed = ancestry.mix(weights[..., : ancestry.allowed.shape[-1]], value)
            if self.attend_self:
                mixed = mixed + weights[..., -1:] * self.as_values(read)
            x = self.leave(x, read, mixed)
        return x.expand(-1, nodes.shape[1], -1, -1)

    # The layout for a long sequence depends on how high its trees are, and its lists are a loop over heights.
    _attend_eagerly = runs_eagerly(_attend)

    def keys_of_nodes(self, nodes: Tensor, trees: BeamTrees) -> tuple[Tensor, Tensor]:
        """Return keys with the embedding of each node's height appended, (B, K, n−1, 2h), and values (…, 2d).

        A node has the same height for every leaf, so a single product of [q; q̃] with [k; E] gives both terms.
        """
        read = self.init(nodes)
        height = trees.heights.clamp(1, MAX_HEIGHT) - 1 + self.attend_self
        return torch.cat((self.as_keys(read), F.embedding(height, self.relative)), -1), self.as_values(read)

    def weights(self, read: Tensor, key: Tensor, ancestry: Ancestry) -> Tensor:
        """Return the attention weights of x' (B, K or 1, n, d) over the ancestors, (B, K, n, M).

        With `attend_self` there is one more column, the weight of the leaf itself.
        """
        query = self.as_queries(read)
        scores, allowed = ancestry.scores(query, key), ancestry.allowed
        if self.attend_self:
            own = torch.cat((self.as_keys(read), self.relative[0].expand(*read.shape[:-1], -1)), -1)
            to_self = (query * own).sum(-1, keepdim=True).expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, to_self), -1)
            allowed = F.pad(allowed, (0, 1), value=True)
        return masked_softmax(scores * self.scale, allowed)


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Return the softmax over the allowed entries, at least in float32; a row that allows nothing is zero."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    lowest = torch.finfo(scores.dtype).min  # unlike −inf, gives no NaN in rows that allow nothing
    weights = scores.masked_fill(~allowed, lowest).softmax(-1)
    return weights.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
