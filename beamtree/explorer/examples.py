"""Inputs at hand for every task; the first one is what a page opens with."""

from functools import cache
from typing import NamedTuple

from beamtree.classifier.model import TreeClassifier


class Ready(NamedTuple):
    title: str
    texts: tuple[str, ...]


_LISTOPS = (
    Ready("a flat list", ("[MAX 2 9 4 7 0 ]",)),
    Ready("a list in a list", ("[MAX 2 9 [MIN 4 7 ] 0 ]",)),
    Ready("three levels", ("[SM 4 [MAX 2 9 [MIN 4 7 ] 0 ] [MED 1 8 5 ] ]",)),
    Ready("a single digit", ("5",)),
)
_LOGIC = (
    Ready("a part of it", ("( a ( and b ) )", "a")),
    Ready("de Morgan", ("( not ( a ( or b ) ) )", "( ( not a ) ( and ( not b ) ) )")),
    Ready("nothing in common", ("( c ( and ( not d ) ) )", "( d ( and ( not c ) ) )")),
)
_SENTENCES = (
    Ready("short", ("a gripping film with a weak ending",)),
    Ready("negated", ("I did not expect to like it, but I could not look away.",)),
)
_PAIRS = (
    Ready("follows", ("A man plays the guitar on a stage.", "A man is making music.")),
    Ready("contradicts", ("Two dogs run through the snow.", "The dogs are asleep.")),
    Ready("a question twice", ("How do I learn to play chess?", "What is the best way to learn chess?")),
)
_RANDOM = ((1, 50), (1, 100), (2, 99), (6, 83))  # so many expressions of so many tokens, in one list


def examples_for(model: TreeClassifier) -> list[Ready]:
    """Those whose words the model knows; one that learnt from a user's own files may know none."""
    return [ready for ready in _examples_of(model.task.name, model.task.sentences) if _is_known(ready, model)]


def _is_known(ready: Ready, model: TreeClassifier) -> bool:
    tokens = [token for text in ready.texts for token in model.task.tokenize(text)]
    return 2 * sum(token in model.vocabulary for token in tokens) >= len(tokens)


@cache
def _examples_of(task: str, sentences: int) -> tuple[Ready, ...]:
    if task == "listops":
        return (*_LISTOPS, *(_random_list(*sizes) for sizes in _RANDOM))
    if task == "logic":
        return _LOGIC
    return _SENTENCES if sentences == 1 else _PAIRS


def _random_list(count: int, length: int) -> Ready:
    # A short expression is quick to draw, and a list of several is as good as a long one.
    from beamtree.data.listops import sample_expressions

    drawn = sample_expressions(count, seed=length, min_length=length, max_length=length)
    tokens = [token for example in drawn for token in example.sentences[0]]
    if count > 1:
        tokens = ["[SM", *tokens, "]"]
    return Ready(f"{len(tokens)} tokens", (" ".join(tokens),))
