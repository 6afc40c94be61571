"""Writes trees as brackets, "((a b) c)" or NLTK's "(X (X a b) c)", reads them, and compares trees with gold.

Nothing here is recursive, as trees may be deep.
"""

import operator
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass

from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown
from beamtree.printable import printable

Span = tuple[int, int]  # [start, end), half-open
_SPELT = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4})")
_SYMBOL = re.compile(r"[()]|[^\s()]+")


def write_brackets(tokens: Sequence[str], spans: Iterable[Span], *, opening: str = "(") -> str:
    """Return the tree with these inner spans in brackets.

    Before a token as many brackets are opened as spans start there, and likewise for closing brackets.
    """
    opened, closed = [0] * len(tokens), [0] * len(tokens)
    for start, end in spans:
        opened[start] += 1
        closed[end - 1] += 1
    return " ".join(
        opening * before + escape(token) + ")" * after
        for token, before, after in zip(tokens, opened, closed, strict=True)
    )


def write_nltk(tokens: Sequence[str], spans: Iterable[Span], label: str) -> str:
    """Return the tree in the format of `nltk.Tree.fromstring`; a single token gets a node of its own."""
    opening = f"({escape(label)} "
    if len(tokens) == 1:
        return f"{opening}{escape(tokens[0])})"
    return write_brackets(tokens, spans, opening=opening)


def escape(token: str) -> str:
    """Return the token in printable characters, without brackets and white space.

    As in treebanks, -LRB- and -RRB- stand for brackets; ␣ stands for white space, `\\x1b` and the like for
    control characters.
    """
    return printable(re.sub(r"\s", "␣", token)).replace("(", "-LRB-").replace(")", "-RRB-") or "␣"


def unescape(token: str) -> str:
    """Return the token that `escape` wrote; white space other than a space comes back as a space."""
    plain = token.replace("-LRB-", "(").replace("-RRB-", ")").replace("␣", " ")
    return _SPELT.sub(_character, plain) if "\\" in plain else plain


def _character(spelt: re.Match[str]) -> str:
    """Return the character that `escape` writes this way; text that only looks like an escape is kept."""
    character = spelt[0].encode().decode("unicode_escape")
    return character if printable(character) == spelt[0] else spelt[0]


def merges_from_brackets(text: str | Sequence[str]) -> tuple[list[str], list[int]]:
    """Return the tokens and merge positions of a binary tree in brackets.

    The tree is a text, "((a b) c)", or a list of its symbols, ["(", "(", "a", "b", ")", "c", ")"]. Tokens in
    a text are unescaped, tokens in a list are taken as they are. Nodes are merged in post-order: each as soon
    as its closing bracket is read.

    Raises:
        BeamtreeError: if the brackets are not one binary tree; the message says where.
    """
    if isinstance(text, str):
        unit = "character"
        symbols = [(match.start() + 1, match.group()) for match in _SYMBOL.finditer(text)]
    else:
        unit = "symbol"
        symbols = list(enumerate(text, start=1))

    tokens: list[str] = []
    merges: list[int] = []
    open_nodes: list[tuple[int, int]] = []  # where each begins, and the number of live nodes before it
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


def spans_from_brackets(text: str, *, labels: bool = False) -> tuple[list[str], set[Span]]:
    """Return the tokens of a tree in brackets, which need not be binary, and its spans of two or more tokens.

    With `labels` the word after an opening bracket is a label, as in treebanks, "(S (NP the old cat) sat)".

    Raises:
        BeamtreeError: if the brackets are not one tree; the message says where.
    """
    tokens: list[str] = []
    spans: set[Span] = set()
    open_nodes: list[tuple[int, int]] = []  # where each begins, and the number of tokens before it
    after_opening = False
    for match in _SYMBOL.finditer(text):
        symbol, place = match.group(), match.start() + 1
        if tokens and not open_nodes:
            raise BeamtreeError(
                f"the tree ends before character {place} ({shown(symbol)}): give one tree only"
            )
        if symbol == "(":
            open_nodes.append((place, len(tokens)))
        elif symbol == ")":
            if not open_nodes:
                raise BeamtreeError(f"the ')' at character {place} has no matching '('")
            opened, start = open_nodes.pop()
            if start == len(tokens):
                raise BeamtreeError(
                    f"the node opened at character {opened} and closed at character {place} has no tokens"
                )
            if len(tokens) - start > 1:
                spans.add((start, len(tokens)))
        elif not (labels and after_opening):
            tokens.append(unescape(symbol))
        after_opening = symbol == "("
    if open_nodes:
        raise BeamtreeError(f"the '(' at character {open_nodes[-1][0]} is never closed")
    if not tokens:
        raise BeamtreeError("the tree has no tokens: write one such as ((a b c) d)")
    return tokens, spans


def spans_of(merges: Sequence[int]) -> set[Span]:
    """Return the inner spans of the tree that n−1 merges build over n tokens, without the whole sentence."""
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
    """Measures how far trees agree with gold trees over a corpus: unlabelled bracketing F1 and exact match.

    ```python
    agreement = Agreement()
    agreement.add(trees.merges[0, 0], merges_from_brackets("((the cat) sat)")[1])
    agreement.f1
    ```

    Spans of two or more tokens are compared, except for the whole sentence, which is a span of every tree.
    Sentences of one or two tokens have only one tree and are not counted. Call `add` for each sentence, or
    `add_spans` if gold trees are not binary; the sum of two `Agreement` objects covers both corpora.
    """

    sentences: int = 0
    exact: int = 0
    shared: int = 0  # spans that are in both trees
    spans: int = 0  # of the trees
    gold_spans: int = 0  # of the gold trees; binary trees over the same tokens have equally many
    sentence_f1_total: float = 0.0

    def add(self, merges: Sequence[int], gold_merges: Sequence[int]) -> None:
        """Count one sentence; both trees are given as merge positions, where −1 is padding."""
        merges, gold_merges = _positions(merges, "merges"), _positions(gold_merges, "gold_merges")
        if len(merges) != len(gold_merges):
            raise ValueError(f"merges has {len(merges)} steps, gold_merges {len(gold_merges)}")
        self._count(merges, spans_of(gold_merges))

    def add_spans(self, merges: Sequence[int], gold_spans: Collection[Span]) -> None:
        """Count one sentence whose gold tree need not be binary and is given as `spans_from_brackets` does.

        The whole sentence must be among the spans, so that trees over different tokens are noticed.
        """
        merges = _positions(merges, "merges")
        n = len(merges) + 1
        reach = max((end for _, end in gold_spans), default=1)
        if reach != n or (n > 1 and (0, n) not in gold_spans):
            raise ValueError(f"gold_spans must have the whole sentence, (0, {n}), and reach no further")
        self._count(merges, {span for span in gold_spans if span[1] - span[0] > 1} - {(0, n)})

    def _count(self, merges: Sequence[int], gold: set[Span]) -> None:
        if len(merges) < 2:
            return
        spans = spans_of(merges)
        shared = len(gold & spans)
        self.sentences += 1
        self.exact += spans == gold
        self.shared += shared
        self.spans += len(spans)
        self.gold_spans += len(gold)
        self.sentence_f1_total += 2 * shared / (len(spans) + len(gold))

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(*map(operator.add, astuple(self), astuple(other)))

    @property
    def f1(self) -> float | None:
        """Corpus-level F1, or None without sentences; of binary trees it is also the precision and the
        recall."""
        return 2 * self.shared / (self.spans + self.gold_spans) if self.spans else None

    @property
    def precision(self) -> float | None:
        """The share of the trees' spans that are gold, or None without sentences."""
        return self.shared / self.spans if self.spans else None

    @property
    def recall(self) -> float | None:
        """The share of the gold trees' spans that were found, or None if they have none."""
        return self.shared / self.gold_spans if self.gold_spans else None

    @property
    def sentence_f1(self) -> float | None:
        """The mean of the F1 of each sentence, or None without sentences."""
        return self.sentence_f1_total / self.sentences if self.sentences else None

    @property
    def exact_match(self) -> float | None:
        """The share of sentences whose tree is the gold tree, or None without sentences."""
        return self.exact / self.sentences if self.sentences else None
