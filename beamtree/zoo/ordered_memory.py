"""Ordered Memory (Shen et al. 2019), a stack of S slots that are written and erased by attention.

Every token x̃ attends over the slots; the slots below the attention are composed with it one after the other.
The last slot after the last token is the sentence vector. A time step is in `ordered_memory_step.py`.
"""

from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.engine.randomness import draw_seed
from beamtree.graphs.step_graphs import StepGraphs
from beamtree.nn.leaf import LeafTransform
from beamtree.pytorch.checks import (
    at_least_one,
    at_least_one_if_given,
    check_rates,
    lengths_from,
    zero_at_padding,
)
from beamtree.pytorch.derivatives import refuse_double_backward, refuse_forward_mode
from beamtree.pytorch.direct_reading import read_norm, read_part
from beamtree.pytorch.precision import layer_norm_wide, without_autocast
from beamtree.pytorch.tracing import runs_eagerly
from beamtree.trees.beam_trees import BeamTrees
from beamtree.zoo.ordered_memory_step import COUNT, MemoryWeights, advance, retreat
from beamtree.zoo.tree_encoder import refuse_export, row

# Beyond this many numbers in the memory, a step's kernels run long enough to hide their launches.
REPLAYED_MEMORY = 2**21


class OrderedMemory(nn.Module):
    """Ordered Memory, (B, n, input_size) -> (B, d_model).

    Training keeps the two memories of every time step, O(n·S·d) numbers, and recomputes the rest. On a GPU a
    time step is one CUDA graph. The leaves and the cell share one layer norm.

    The tree for `need_trees` is found as by the authors: with y_t the slot of token t's largest attention,
    the model is a shift-reduce parser that makes y_t − y_{t−1} + 1 reductions before it shifts token t (none
    if that is negative), and reduces what is left at the end.

    Args:
        d_model: width of a slot.
        input_size: width of the tokens, `d_model` if not given.
        memory_slots: number of slots S, which bounds the depth of the stack.
        test_slots: number of slots in evaluation, `memory_slots` if not given. (The original doubles it, the
            published comparison does not.)
        dropout: dropout rate on the cell's input and hidden layer.
        memory_dropout: dropout rate in the attention.
    """

    def __init__(
        self,
        d_model: int,
        *,
        input_size: int | None = None,
        memory_slots: int = 21,
        test_slots: int | None = None,
        dropout: float = 0.0,
        memory_dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        at_least_one(memory_slots=memory_slots)
        at_least_one_if_given(test_slots=test_slots)
        check_rates(dropout=dropout, memory_dropout=memory_dropout)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.d_model = d_model
        self.input_size = d_model if input_size is None else input_size
        self.memory_slots, self.test_slots = memory_slots, test_slots
        self.dropout, self.memory_dropout = dropout, memory_dropout
        self.memory_norm = nn.LayerNorm(d_model, **factory)
        self.leaf = nn.ModuleDict({"linear": nn.Linear(self.input_size, d_model, **factory)})
        self.query = LeafTransform(d_model, d_model, **factory)
        self.key = LeafTransform(d_model, d_model, **factory)
        self.beta = nn.Linear(d_model, 1, **factory)
        self.cell = nn.ModuleDict(
            {
                "w1": nn.Linear(2 * d_model, 4 * d_model, **factory),
                "w2": nn.Linear(4 * d_model, 4 * d_model, **factory),
            }
        )
        self._graphs = StepGraphs()

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, need_trees: bool = False) -> Any:
        """Encode x (B, n, input_size) as (B, d_model); with `need_trees` also return the trees.

        `key_padding_mask` (B, n) is True at padding, on the right.
        """
        refuse_export(self)
        lengths = lengths_from(
            x, key_padding_mask, input_size=self.input_size, weight=self.memory_norm.weight
        )
        x = zero_at_padding(x, key_padding_mask)
        leaves = layer_norm_wide(self.leaf["linear"](x.transpose(0, 1)), self.memory_norm)  # (n, B, d)
        outputs, p = self._read(leaves)
        sentence = row(outputs.transpose(0, 1), lengths - 1).to(self.memory_norm.weight.dtype)
        return (sentence, _parse(p, lengths)) if need_trees else sentence

    @runs_eagerly
    def _read(self, leaves: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last slot (n, B, d) and the attention (n, S, B) after every token."""
        wide = torch.promote_types(self.memory_norm.weight.dtype, torch.float32)
        with without_autocast(leaves):
            queries = self.query(F.dropout(leaves, self.memory_dropout, self.training))
            weights = self._weights(wide)
            refuse_forward_mode(leaves, queries, *weights)
            rates = {"dropout": self.dropout, "memory_dropout": self.memory_dropout}
            slots = self.memory_slots
            if not self.training:
                rates = dict.fromkeys(rates, 0.0)
                slots = self.test_slots or slots
            given = (leaves.to(wide), queries.to(wide), slots, rates, self._graphs, torch.is_grad_enabled())
            read: tuple[Tensor, Tensor] = _Reading.apply(*given, *weights)
        return read

    def _weights(self, wide: torch.dtype) -> MemoryWeights:
        w1, w2 = cast(nn.Linear, self.cell["w1"]), cast(nn.Linear, self.cell["w2"])
        key, memory = (read_part(self.key.linear), read_norm(self.key.norm)), read_norm(self.memory_norm)
        read = (*key, *map(read_part, (self.beta, w1, w2)), memory)
        parts = [part.to(wide) for pair in read for part in pair]
        parts[6:7] = parts[6].chunk(2, 1)
        return MemoryWeights(*(part.contiguous() for part in parts))  # the kernels need them contiguous

    def extra_repr(self) -> str:
        return (
            f"d_model={self.d_model}, memory_slots={self.memory_slots}, test_slots={self.test_slots}, "
            f"dropout={self.dropout}, memory_dropout={self.memory_dropout}"
        )


class _Reading(torch.autograd.Function):
    """Reads all tokens with `advance`; the backward pass goes over them in reverse with `retreat`."""

    @staticmethod
    def forward(
        ctx: Any,
        leaves: Tensor,
        queries: Tensor,
        slots: int,
        rates: dict[str, float],
        graphs: StepGraphs,
        differentiable: bool,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        n, B, d = leaves.shape
        # There is no memory before the first token: it fills every slot, whatever the weights.
        memory, p = leaves.new_zeros(slots, B, d), leaves.new_zeros(slots, B)
        candidates = leaves[0].expand(slots, B, d)
        outputs, attention = leaves.new_empty(n, B, d), leaves.new_empty(n, slots, B)
        outputs[0], attention[0] = leaves[0], p
        states = [(memory, candidates, p)]
        times = torch.arange(n, device=leaves.device)
        seed = draw_seed(leaves.device) if any(rates.values()) else times.new_zeros(())
        replay = memory.numel() <= REPLAYED_MEMORY
        with graphs.run(advance, weights, replay=replay, **rates) as step:
            for t in range(1, n):
                memory, candidates, p = step(leaves[t], queries[t], memory, candidates, p, seed, times[t])
                outputs[t], attention[t] = candidates[-1], p
                if differentiable:
                    states.append((memory, candidates, p))
        if differentiable:
            ctx.save_for_backward(
                leaves, queries, seed, *weights, *(part for state in states for part in state)
            )
            ctx.rates, ctx.graphs, ctx.replay = rates, graphs, replay
        ctx.mark_non_differentiable(attention)
        return outputs, attention

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        refuse_double_backward()
        leaves, queries, seed, *saved = ctx.saved_tensors
        weights, flat = saved[:COUNT], saved[COUNT:]
        states = [flat[i : i + 3] for i in range(0, len(flat), 3)]
        d_leaves, d_queries = torch.empty_like(leaves), torch.zeros_like(queries)
        d_memory, d_candidates, d_p = (torch.zeros_like(part) for part in states[0])
        times = torch.arange(len(leaves), device=leaves.device)
        constants = [*weights, *(torch.zeros_like(weight) for weight in weights)]
        with (
            without_autocast(leaves),
            ctx.graphs.run(retreat, constants, replay=ctx.replay, **ctx.rates) as step,
        ):
            for t in reversed(range(1, len(leaves))):
                d_candidates[-1] += d_outputs[t]
                d_leaves[t], d_queries[t], d_memory, d_candidates, d_p = step(
                    leaves[t], queries[t], *states[t - 1], states[t][1],
                    d_memory, d_candidates, d_p, seed, times[t],
                )  # fmt: skip
            d_weights = [total.clone() for total in step.constants[COUNT:]]
        d_leaves[0] = d_outputs[0] + d_candidates.sum(0)
        return d_leaves, d_queries, None, None, None, None, *d_weights


def _parse(attention: Tensor, lengths: Tensor) -> BeamTrees:
    n = len(attention)
    merges = torch.full((len(lengths), n - 1), -1, dtype=torch.int64, device="cpu")
    if not lengths.is_meta:  # meta tensors have no values
        slots = attention.argmax(1).t().tolist()  # (B, n)
        for b, length in enumerate(lengths.tolist()):
            positions = _shift_and_reduce(slots[b][:length])
            merges[b, : length - 1] = torch.tensor(positions, dtype=torch.int64, device="cpu")
    return BeamTrees.from_merges(merges.to(lengths.device), lengths)


def _shift_and_reduce(slots: list[int]) -> list[int]:
    """Return the position of each merge; a reduction merges the last two nodes of the stack."""
    positions: list[int] = []
    stacked = 1
    for before, now in pairwise(slots):
        reductions = min(max(now - before + 1, 0), stacked - 1)
        positions += range(stacked - 2, stacked - 2 - reductions, -1)
        stacked += 1 - reductions
    return [*positions, *range(stacked - 2, -1, -1)]
