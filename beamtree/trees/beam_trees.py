"""`BeamTrees`, the K best trees of each sequence of a batch, stored as merges with scores.

Everything else is computed from these: spans, heights, children, brackets, JSON and pictures.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from beamtree.errors import BeamtreeError
from beamtree.printable import write_json
from beamtree.trees.brackets import write_brackets, write_nltk
from beamtree.trees.constraints import check_merges
from beamtree.trees.drawing import PlainTree, draw_in_terminal
from beamtree.trees.structure import Structure, find_structure
from beamtree.trees.svg import draw_as_svg

TokenLists = Sequence[Sequence[str]] | Sequence[str] | None
SHOWN_IN_NOTEBOOK = 3  # at most so many sequences
DRAWN_IN_NOTEBOOK = 500  # a sequence of at most so many tokens


class ScoredTree(NamedTuple):
    """One tree of one sequence.

    Fields:
        log_score: the log-score of its beam.
        weight: its share of the softmax over the beams.
        merges: for each step, the position of the merged pair's left node among the live nodes.
    """

    log_score: float
    weight: float
    merges: list[int]


class BeamTrees:
    """The K best trees of each sequence of a batch, best first.

    ```python
    y, trees = encoder(x, key_padding_mask=is_pad, need_trees=True)
    trees.brackets(words)  # the best tree of each sequence; words is a list of tokens per sequence
    trees.weights  # (B, K), how much each tree counts
    print(trees.draw(words, index=0))
    ```

    Methods that take `tokens` need one list of tokens per sequence (for a single sequence, the list of tokens
    itself will do). Without `tokens`, leaves get the names set by `named`, or else their positions.

    Args:
        merges: (B, K, n-1), for each step the position of the merged pair's left node among the live nodes;
            -1 if there is no merge, after the end of a sequence and in dead beams.
        relative_scores: (B, K), log-scores minus `offset`; -inf for dead beams. They are relative because
            near -11,000 float32 cannot resolve the differences between beams.
        offset: (B,), float64, what was subtracted from the log-scores of a sequence.
        lengths: (B,), the number of tokens of each sequence.
    """

    def __init__(self, merges: Tensor, relative_scores: Tensor, offset: Tensor, lengths: Tensor) -> None:
        B, K = relative_scores.shape
        if merges.shape[:-1] != (B, K) or offset.shape != (B,) or lengths.shape != (B,):
            raise ValueError(
                "merges, relative_scores, offset and lengths must be (B, K, n-1), (B, K), (B,) and (B,), got "
                f"{[tuple(x.shape) for x in (merges, relative_scores, offset, lengths)]}"
            )
        self.merges = merges
        self.relative_scores = relative_scores
        self.offset = offset
        self.lengths = lengths
        self._names: Sequence[Sequence[str]] | None = None
        self._found: Structure | None = None

    @classmethod
    def from_merges(
        cls, merges: Tensor | Sequence[Sequence[int]], lengths: Tensor | None = None
    ) -> "BeamTrees":
        """Make one tree per sequence, with score 0, from merges (B, n-1) or a list of positions for each.

        `lengths` (B,) are counted from the merges if not given. Raises ValueError if the merges of a sequence
        are not one whole tree.
        """
        if not isinstance(merges, Tensor):
            steps = max(map(len, merges), default=0)
            padded = [[*positions, *[-1] * (steps - len(positions))] for positions in merges]
            merges = torch.tensor(padded, dtype=torch.int64).reshape(len(merges), steps)
        if lengths is None:
            lengths = (merges >= 0).sum(-1) + 1
        check_merges(merges, lengths)
        B = merges.shape[0]
        scores = torch.zeros(B, 1, device=merges.device)
        return cls(merges[:, None], scores, scores.new_zeros(B, dtype=torch.float64), lengths)

    @property
    def alive(self) -> Tensor:
        """(B, K), True for beams that hold a tree."""
        return self.relative_scores != -torch.inf

    @property
    def log_scores(self) -> Tensor:
        """(B, K), the log-scores of the trees, -inf for dead beams; with gradient."""
        scores = self.relative_scores.double() + self.offset[:, None]
        return scores.to(self.relative_scores.dtype)

    @property
    def weights(self) -> Tensor:
        """(B, K), the softmax of the scores, 0 for dead beams; with gradient."""
        return self.relative_scores.softmax(-1)

    @property
    def spans(self) -> Tensor:
        """(B, K, n-1, 2), the half-open span [start, end) of tokens under the node made at each step."""
        return self._structure.spans

    @property
    def span_weights(self) -> Tensor:
        """(B, n, n+1), at [i, j] the total weight of the trees that have a node over tokens [i, j).

        With gradient.
        """
        exists, n = self.merges >= 0, self.merges.shape[-1] + 1
        start, end = self.spans.where(exists[..., None], 0).unbind(-1)  # nothing is added at [0, 0)
        weights = self.weights[..., None] * exists
        place = start * (n + 1) + end
        flat = weights.new_zeros(len(self), n * (n + 1))
        return flat.scatter_add(1, place.flatten(1), weights.flatten(1)).unflatten(1, (n, n + 1))

    @property
    def heights(self) -> Tensor:
        """(B, K, n-1), the height of the node made at each step: its higher child's + 1; a leaf has 0."""
        return self._structure.heights

    @property
    def children(self) -> Tensor:
        """(B, K, n-1, 2), the ids of the two nodes joined at each step.

        Leaf i has id i and the node made at step t has id n + t, where n is the padded width
        merges.shape[-1] + 1; so ids index `torch.cat([leaves, nodes], 1)`. In `trees[b]`, n is the length of
        the sequence.
        """
        return self._structure.children

    @property
    def _structure(self) -> Structure:
        # Cached by hand, because the lock of a cached_property causes a graph break in torch.compile.
        if self._found is None:
            B, K, _ = self.merges.shape
            found = find_structure(self.merges.flatten(0, 1))
            self._found = Structure(*(part.unflatten(0, (B, K)) for part in found))
        return self._found

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int | slice) -> "BeamTrees":
        """Return the trees of one sequence as a batch of one, cut to its length, or those of a slice."""
        if isinstance(index, slice):
            rows, steps = index, self.merges.shape[-1]
        else:
            row = self._row(index)
            rows, steps = slice(row, row + 1), int(self.lengths[row]) - 1
        some = BeamTrees(
            self.merges[rows, :, :steps], self.relative_scores[rows], self.offset[rows], self.lengths[rows]
        )
        some._names = None if self._names is None else self._names[rows]
        return some

    def detach(self) -> "BeamTrees":
        """Return the same trees without gradient, so that keeping them does not keep the autograd graph."""
        return self._each(Tensor.detach)

    def to(self, device: torch.device | str) -> "BeamTrees":
        """Return the same trees on another device; scores keep their gradient."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "BeamTrees":
        same = BeamTrees(*map(change, (self.merges, self.relative_scores, self.offset, self.lengths)))
        same._names = self._names
        return same

    def _row(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no sequence {index}: there are {len(self)}")
        return index % len(self)

    def __repr__(self) -> str:
        B, K, steps = self.merges.shape
        return f"BeamTrees(B={B}, K={K}, n={steps + 1})"

    def named(self, tokens: TokenLists) -> "BeamTrees":
        """Return the same trees with these tokens as names of their leaves; a notebook draws them so too."""
        shown = self[:]
        shown._names = [_tokens_of(tokens, i, int(self.lengths[i]), len(self)) for i in range(len(self))]
        return shown

    def k_best(self, index: int = 0) -> list[ScoredTree]:
        """Return the trees of one sequence with their scores, best first, without dead beams.

        Several may be the same tree, merged in another order; the encoder's `merge_equal_trees` unites them.
        """
        one = self[index].to_dict()["sequences"][0]
        return [ScoredTree(beam["log_score"], beam["weight"], beam["merges"]) for beam in one["beams"]]

    def span_sets(self, index: int = 0, beam: int = 0) -> set[tuple[int, int]]:
        """Return the spans of one tree's inner nodes; trees over the same tokens are equal if these are."""
        return set(self._plain(None, index, beam).spans)

    def brackets(self, tokens: TokenLists = None, beam: int = 0) -> list[str]:
        """Return one tree of each sequence as "((a b) c)"; brackets inside tokens become -LRB- and -RRB-."""
        trees = (self._plain(tokens, index, beam) for index in range(len(self)))
        return [write_brackets(tree.tokens, tree.spans) for tree in trees]

    def nltk(self, tokens: TokenLists = None, label: str = "X", beam: int = 0) -> list[str]:
        """Return one tree of each sequence as "(X (X a b) c)", which `nltk.Tree.fromstring` reads."""
        trees = (self._plain(tokens, index, beam) for index in range(len(self)))
        return [write_nltk(tree.tokens, tree.spans, label) for tree in trees]

    def svg(self, tokens: TokenLists = None, index: int = 0, beam: int = 0) -> str:
        """Return one tree as a self-contained SVG picture, with light and dark colours."""
        tree = self._plain(tokens, index, beam)
        n, living = len(tree.tokens), int(self.alive[index].sum())
        caption = f"{n} tokens" if n > 1 else "1 token"
        if living > 1:
            caption += f", beam {beam + 1} of {living}, weight {self.weights[index, beam].item():.3f}"
        return draw_as_svg(tree, caption)

    def draw(
        self, tokens: TokenLists = None, index: int = 0, beam: int = 0, *, width: int | None = None
    ) -> str:
        """Return one tree drawn in box characters, at most `width` columns wide (default: the terminal's)."""
        return draw_in_terminal(self._plain(tokens, index, beam), width)

    def _repr_svg_(self) -> str | None:
        return self.svg() if len(self) and int(self.lengths[0]) <= DRAWN_IN_NOTEBOOK else None

    def _repr_html_(self) -> str:
        parts = [f"<p><code>{self!r}</code></p>"]
        for index in range(min(len(self), SHOWN_IN_NOTEBOOK)):
            picture, length = self[index]._repr_svg_(), int(self.lengths[index])
            hint = f"Sequence {index} has {length} tokens, too many to draw here: use svg(index={index})."
            parts.append(f'<div style="overflow-x: auto">{picture or hint}</div>')
        if len(self) > SHOWN_IN_NOTEBOOK:
            parts.append(f"<p>and {len(self) - SHOWN_IN_NOTEBOOK} more</p>")
        return "\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the trees as a dictionary of plain Python values, which `from_dict` reads back.

        For each sequence it has the living beams with their scores, weight, merges and spans, cut to the
        sequence's length, and the tokens set by `named`.
        """
        spans = self.spans.tolist()
        merges, alive = self.merges.tolist(), self.alive.tolist()
        scores, weights = self.relative_scores.tolist(), self.weights.tolist()
        sequences = [
            {
                "length": length,
                "offset": offset,
                "beams": [
                    {
                        "log_score": offset + scores[b][k],
                        "relative_score": scores[b][k],
                        "weight": weights[b][k],
                        "merges": merges[b][k][: length - 1],
                        "spans": spans[b][k][: length - 1],
                    }
                    for k in range(len(scores[b]))
                    if alive[b][k]
                ],
                **({} if self._names is None else {"tokens": list(self._names[b])}),
            }
            for b, (length, offset) in enumerate(
                zip(self.lengths.tolist(), self.offset.tolist(), strict=True)
            )
        ]
        _, K, steps = self.merges.shape
        dtype = str(self.relative_scores.dtype).removeprefix("torch.")
        return {"beam_size": K, "width": steps + 1, "dtype": dtype, "sequences": sequences}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "BeamTrees":
        """Make trees from the result of `to_dict`, on the CPU and without gradient.

        Log-scores and weights are recomputed from the relative scores. Raises `BeamtreeError` if `data` is
        not what `to_dict` returns.
        """
        try:
            K, n, sequences = data["beam_size"], data["width"], data["sequences"]
            merges = torch.full((len(sequences), K, n - 1), -1)
            scores = torch.full((len(sequences), K), -torch.inf, dtype=getattr(torch, data["dtype"]))
            lengths = torch.tensor([sequence["length"] for sequence in sequences], dtype=torch.int64)
            offset = torch.tensor([sequence["offset"] for sequence in sequences], dtype=torch.float64)
            for b, sequence in enumerate(sequences):
                for k, beam in enumerate(sequence["beams"]):
                    steps = sequence["length"] - 1
                    merges[b, k, :steps] = torch.tensor(beam["merges"], dtype=torch.int64).reshape(steps)
                    scores[b, k] = beam["relative_score"]
            for k in range(K):
                living = scores[:, k] != -torch.inf
                check_merges(merges[living, k], lengths[living])
            found = cls(merges, scores, offset, lengths)
            tokens = [sequence["tokens"] for sequence in sequences if "tokens" in sequence]
            return found.named(tokens) if tokens else found
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise BeamtreeError(f"this is not what BeamTrees.to_dict writes: {reason}") from error

    def to_json(self, indent: int | None = None) -> str:
        """Return the trees as JSON, the text of `to_dict`."""
        return write_json(self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> "BeamTrees":
        """Make trees from the result of `to_json`; raises `BeamtreeError` if the text is anything else."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise BeamtreeError(f"this is not what BeamTrees.to_json writes: {error}") from error
        return cls.from_dict(data)

    def _plain(self, tokens: TokenLists, index: int, beam: int) -> PlainTree:
        index = self._row(index)
        length = int(self.lengths[index])
        living = int(self.alive[index].sum())
        if not 0 <= beam < living:
            raise ValueError(
                f"there is no beam {beam}: sequence {index} has {living} living beams, counted from 0; "
                "k_best(index) lists all of them"
            )
        children = self.children[index, beam, : length - 1]
        padding = self.merges.shape[-1] + 1 - length
        return PlainTree(
            _tokens_of(self._names if tokens is None else tokens, index, length, len(self)),
            [(start, end) for start, end in self.spans[index, beam, : length - 1].tolist()],
            [(left, right) for left, right in (children - padding * (children >= length)).tolist()],
            self.heights[index, beam, : length - 1].tolist(),
        )


def _tokens_of(tokens: TokenLists, index: int, length: int, B: int) -> list[str]:
    if tokens is None:
        return [str(position) for position in range(length)]
    if B == 1 and len(tokens) and all(isinstance(token, str) for token in tokens):
        tokens = [tokens]  # type: ignore[list-item]
    if len(tokens) != B:
        raise ValueError(f"tokens must hold one list per sequence, {B} in all, got {len(tokens)}")
    own = tokens[index]
    if isinstance(own, str):
        raise ValueError(
            f"tokens of sequence {index} must be a list of tokens, got the string {own!r}: split it"
        )
    if len(own) != length:
        raise ValueError(f"sequence {index} has {length} tokens, but got names for {len(own)}")
    return [str(token) for token in own]
