"""ListOps expressions as the published files write them."""

from collections.abc import Sequence

from beamtree.data.listops.language import CLOSE, VALUE_OF, bracket


def brackets(tokens: Sequence[str]) -> str:
    """A sound expression, fully binarised: `( ( ( [MAX 2 ) 9 ) ] )`."""
    lists: list[tuple[str, list[str]]] = [("", [])]
    for token in tokens:
        if token in VALUE_OF:
            lists.append((token, []))
        elif token == CLOSE:
            operator, arguments = lists.pop()
            lists[-1][1].append(bracket(operator, arguments))
        else:
            lists[-1][1].append(token)
    return lists[0][1][0]
