"""`BeamTrees`: the K best trees of each sequence of a batch, best first, as merges with scores, and all that
follows from them: spans, heights, children, brackets, JSON, pictures.
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
SHOWN_IN_NOTEBOOK = 3  # sequences
DRAWN_IN_NOTEBOOK = 500  # tokens


class ScoredTree(NamedTuple):
    """One beam of one sequence: its log-score, its share of the softmax, and the position of each merge."""

    log_score: float
    weight: float
    merges: list[int]


class BeamTrees:
    """The trees that an encoder found.

    `merges` (B, K, n-1) is the position of the left node of the merged pair among the live nodes at each
    step, -1 where there is no merge (after the end of a sequence, in dead beams). `relative_scores` (B, K)
    are log-scores less `offset` (B,), -inf for dead beams: near -11,000 float32 cannot tell beams apart.

    Methods that take `tokens` want a list of tokens per sequence (one list will do for one sequence); without
    it, leaves have the names that `named` gave them, or their positions.
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
        """One given tree per sequence, with score 0: merges (B, n-1), or a list of positions each."""
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
        """(B, K) whether the beam holds a tree."""
        return self.relative_scores != -torch.inf

    @property
    def log_scores(self) -> Tensor:
        """(B, K) accumulated log-scores, -inf for dead beams; carry gradient."""
        scores = self.relative_scores.double() + self.offset[:, None]
        return scores.to(self.relative_scores.dtype)

    @property
    def weights(self) -> Tensor:
        """(B, K) softmax of the scores, 0 for dead beams; carry gradient."""
        return self.relative_scores.softmax(-1)

    @property
    def spans(self) -> Tensor:
        """(B, K, n-1, 2) the half-open [start, end) of tokens under the node made at each step."""
        return self._structure.spans

    @property
    def span_weights(self) -> Tensor:
        """(B, n, n+1) at [i, j] the weight of the trees in which tokens [i, j) are a node; carry gradient."""
        exists, n = self.merges >= 0, self.merges.shape[-1] + 1
        start, end = self.spans.where(exists[..., None], 0).unbind(-1)  # nothing is added at [0, 0)
        weights = self.weights[..., None] * exists
        place = start * (n + 1) + end
        flat = weights.new_zeros(len(self), n * (n + 1))
        return flat.scatter_add(1, place.flatten(1), weights.flatten(1)).unflatten(1, (n, n + 1))

    @property
    def heights(self) -> Tensor:
        """(B, K, n-1) the height of the node made at each step: its higher child's + 1; a leaf has 0."""
        return self._structure.heights

    @property
    def children(self) -> Tensor:
        """(B, K, n-1, 2) the two nodes joined at each step, as rows of the leaves and nodes put together.

        Leaf i is i and the node made at step t is n + t, n being the padded width merges.shape[-1] + 1, so
        that the ids index `torch.cat([leaves, nodes], 1)`. `trees[b]` has its own length as width.
        """
        return self._structure.children

    @property
    def _structure(self) -> Structure:
        # Kept by hand, as the lock of a cached_property breaks a compiled graph.
        if self._found is None:
            B, K, _ = self.merges.shape
            found = find_structure(self.merges.flatten(0, 1))
            self._found = Structure(*(part.unflatten(0, (B, K)) for part in found))
        return self._found

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int | slice) -> "BeamTrees":
        """The trees of one sequence as a batch of one, cut to its length; or those of a slice."""
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
        """The same trees without gradient: keeping them does not keep a training step's memory."""
        return self._each(Tensor.detach)

    def to(self, device: torch.device | str) -> "BeamTrees":
        """The same trees on a device; scores keep their gradient."""
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
        """The same trees with these tokens as the names of their leaves, also in notebooks."""
        shown = self[:]
        shown._names = [_tokens_of(tokens, i, int(self.lengths[i]), len(self)) for i in range(len(self))]
        return shown

    def k_best(self, index: int = 0) -> list[ScoredTree]:
        """The living beams of one sequence, best first."""
        one = self[index].to_dict()["sequences"][0]
        return [ScoredTree(beam["log_score"], beam["weight"], beam["merges"]) for beam in one["beams"]]

    def span_sets(self, index: int = 0, beam: int = 0) -> set[tuple[int, int]]:
        """The spans of one tree without its leaves; trees over as many tokens are equal if these are."""
        return set(self._plain(None, index, beam).spans)

    def brackets(self, tokens: TokenLists = None, beam: int = 0) -> list[str]:
        """One tree of each sequence as "((a b) c)"; a bracket inside a token becomes -LRB- or -RRB-."""
        trees = (self._plain(tokens, index, beam) for index in range(len(self)))
        return [write_brackets(tree.tokens, tree.spans) for tree in trees]

    def nltk(self, tokens: TokenLists = None, label: str = "X", beam: int = 0) -> list[str]:
        """One tree of each sequence as "(X (X a b) c)", which `nltk.Tree.fromstring` reads."""
        trees = (self._plain(tokens, index, beam) for index in range(len(self)))
        return [write_nltk(tree.tokens, tree.spans, label) for tree in trees]

    def svg(self, tokens: TokenLists = None, index: int = 0, beam: int = 0) -> str:
        """One tree as a self-contained SVG picture, in light and dark."""
        tree = self._plain(tokens, index, beam)
        n, living = len(tree.tokens), int(self.alive[index].sum())
        caption = f"{n} tokens" if n > 1 else "1 token"
        if living > 1:
            caption += f", beam {beam + 1} of {living}, weight {self.weights[index, beam].item():.3f}"
        return draw_as_svg(tree, caption)

    def draw(
        self, tokens: TokenLists = None, index: int = 0, beam: int = 0, *, width: int | None = None
    ) -> str:
        """One tree in box characters, no wider than `width` columns (the terminal's if not given)."""
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
        """Living beams only, each cut to its sequence's length, with the tokens [start, end) that each merge
        spans; plain numbers throughout. Tokens that were given by `named` are kept."""
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
        """The inverse of `to_dict`, on the CPU, without gradient; log-scores and weights are recomputed."""
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
        """`to_dict` as text."""
        return write_json(self.to_dict(), indent=indent)

    @classmethod
    def from_json(cls, text: str) -> "BeamTrees":
        """The inverse of `to_json`."""
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
                "k_best(index) has all of a sequence"
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
        raise ValueError(f"sequence {index} has {length} tokens, as many as were encoded, but got {len(own)}")
    return [str(token) for token in own]
