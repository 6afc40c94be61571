"""Trees as brackets: written as "((a b) c)" or NLTK's "(X (X a b) c)", read back, compared with gold trees.

Each with a stack or a count, never by recursion: trees may be deep.
"""

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown
from beamtree.printable import printable

Span = tuple[int, int]  # first token, and the one after the last
_SPELT = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4})")


def write_brackets(tokens: Sequence[str], spans: Iterable[Span], *, opening: str = "(") -> str:
    """The tree with these inner spans: as many brackets open before a token as spans start there."""
    opened, closed = [0] * len(tokens), [0] * len(tokens)
    for start, end in spans:
        opened[start] += 1
        closed[end - 1] += 1
    return " ".join(
        opening * before + escape(token) + ")" * after
        for token, before, after in zip(tokens, opened, closed, strict=True)
    )


def write_nltk(tokens: Sequence[str], spans: Iterable[Span], label: str) -> str:
    """What `nltk.Tree.fromstring` reads; a lone token is the child of one node."""
    opening = f"({escape(label)} "
    if len(tokens) == 1:
        return f"{opening}{escape(tokens[0])})"
    return write_brackets(tokens, spans, opening=opening)


def escape(token: str) -> str:
    """The token in printable characters that cannot be mistaken for a bracket or a gap.

    -LRB- and -RRB- stand for brackets as in treebanks, ␣ for space, `\\x1b` and the like for controls.
    """
    return printable(re.sub(r"\s", "␣", token)).replace("(", "-LRB-").replace(")", "-RRB-") or "␣"


def unescape(token: str) -> str:
    plain = token.replace("-LRB-", "(").replace("-RRB-", ")").replace("␣", " ")
    return _SPELT.sub(_character, plain) if "\\" in plain else plain


def _character(spelt: re.Match[str]) -> str:
    """The character that `escape` spelt this way; text that only looks like it stays."""
    character = spelt[0].encode().decode("unicode_escape")
    return character if printable(character) == spelt[0] else spelt[0]


def merges_from_brackets(text: str | Sequence[str]) -> tuple[list[str], list[int]]:
    """Tokens and merge positions of "((a b) c)", or of its symbols in a list: ["(", "(", "a", "b", ")", …].

    Nodes are merged in post-order, from left to right and from the bottom up: a node as soon as its closing
    bracket is read. In a text, escaped tokens are turned back; in a list, tokens are taken as they are.
    """
    if isinstance(text, str):
        unit = "character"
        symbols = [(match.start() + 1, match.group()) for match in re.finditer(r"[()]|[^\s()]+", text)]
    else:
        unit = "symbol"
        symbols = list(enumerate(text, start=1))

    tokens: list[str] = []
    merges: list[int] = []
    open_nodes: list[tuple[int, int]] = []  # where each begins, and how many nodes were alive before it
    alive = 0
    for place, symbol in symbols:
        if alive and not open_nodes:
            raise BeamtreeError(f"the tree ends before {unit} {place} ({shown(symbol)}): give one tree only")
        if symbol == "(":
            open_nodes.append((place, alive))
        elif symbol == ")":
            if not open_nodes:
                raise BeamtreeError(f"the ')' at {unit} {place} has no matching '('")
            opened, before = open_nodes.pop()
            if alive - before != 2:
                raise BeamtreeError(
                    f"the node opened at {unit} {opened} and closed at {unit} {place} must have two "
                    f"children, as every node of a binary tree, not {alive - before}"
                )
            alive -= 1
            merges.append(alive - 1)
        else:
            tokens.append(unescape(symbol) if isinstance(text, str) else symbol)
            alive += 1
    if open_nodes:
        raise BeamtreeError(f"the '(' at {unit} {open_nodes[-1][0]} is never closed")
    if not tokens:
        raise BeamtreeError("the tree has no tokens: write one such as ((a b) c)")
    return tokens, merges


def spans_of(merges: Sequence[int]) -> set[Span]:
    """The spans of the tree that n−1 merges build over n tokens, the whole sentence left out."""
    n = len(merges) + 1
    edges = list(range(n + 1))  # live node i covers edges[i] to edges[i + 1]
    spans = set()
    for step, position in enumerate(merges):
        if not 0 <= position < n - step - 1:
            raise ValueError(f"merges[{step}] is {position}, but only {n - step} nodes are left")
        spans.add((edges[position], edges[position + 2]))
        del edges[position + 1]
    spans.discard((0, n))
    return spans


def _positions(merges: Sequence[int], name: str) -> list[int]:
    try:
        return [step for step in map(operator.index, merges) if step != -1]
    except TypeError as error:
        raise TypeError(
            f"{name} must be the positions of one tree's merges, as trees.merges[0, 0] and "
            f"merges_from_brackets(text)[1] have them, got {type(merges).__name__}"
        ) from error


@dataclass
class Agreement:
    """How far induced trees agree with gold ones over a corpus: unlabelled bracketing F1 and exact match.

    A tree counts as its spans of two tokens or more, except the span of the whole sentence, which every tree
    has. Sentences of one or two tokens have only one tree: they are left out of every figure. `add` sentences
    one by one, or `+` two corpora.
    """

    sentences: int = 0
    exact: int = 0
    shared: int = 0  # spans in both trees
    spans: int = 0  # spans in either: binary trees over the same tokens have equally many
    sentence_f1_total: float = 0.0

    def add(self, merges: Sequence[int], gold_merges: Sequence[int]) -> None:
        """Count one sentence; both trees are given by their merge positions, of which −1 is padding."""
        merges, gold_merges = _positions(merges, "merges"), _positions(gold_merges, "gold_merges")
        if len(merges) != len(gold_merges):
            raise ValueError(f"merges has {len(merges)} steps, gold_merges {len(gold_merges)}")
        if len(gold_merges) < 2:
            return
        gold = spans_of(gold_merges)
        shared = len(gold & spans_of(merges))
        self.sentences += 1
        self.exact += shared == len(gold)
        self.shared += shared
        self.spans += len(gold)
        self.sentence_f1_total += shared / len(gold)

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(*map(operator.add, astuple(self), astuple(other)))

    @property
    def f1(self) -> float | None:
        """Corpus-level F1. With equally many spans on both sides precision, recall and F1 are one number."""
        return self.shared / self.spans if self.spans else None

    @property
    def sentence_f1(self) -> float | None:
        """The mean of the sentences' own F1."""
        return self.sentence_f1_total / self.sentences if self.sentences else None

    @property
    def exact_match(self) -> float | None:
        """The share of sentences whose tree is the gold tree."""
        return self.exact / self.sentences if self.sentences else None
