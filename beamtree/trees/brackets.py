"""Trees as text: "((a b) c)", NLTK's "(X (X a b) c)", and back. A stack or a count each, never recursion."""

import re
from collections.abc import Iterable, Sequence

from beamtree.errors import BeamtreeError
from beamtree.files.bounded import shown
from beamtree.printable import printable

Span = tuple[int, int]
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
    """A token that can be printed and is taken for no bracket or gap.

    -LRB- and -RRB- stand for brackets as in treebanks, ␣ for space, `\\x1b` and the like for controls.
    """
    return printable(re.sub(r"\s", "␣", token)).replace("(", "-LRB-").replace(")", "-RRB-") or "␣"


def unescape(token: str) -> str:
    plain = token.replace("-LRB-", "(").replace("-RRB-", ")").replace("␣", " ")
    return _SPELT.sub(_character, plain) if "\\" in plain else plain


def _character(spelt: re.Match[str]) -> str:
    """What `escape` spelt so; text that only looks like it stays."""
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
            raise BeamtreeError(
                f"the tree is complete before {unit} {place} ({shown(symbol)}): one tree is wanted"
            )
        if symbol == "(":
            open_nodes.append((place, alive))
        elif symbol == ")":
            if not open_nodes:
                raise BeamtreeError(f"the ')' at {unit} {place} closes no '('")
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
        raise BeamtreeError("there is no token in the tree: write one such as ((a b) c)")
    return tokens, merges
