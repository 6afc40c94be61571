"""Tags for the tokens of a ListOps expression: value and depth of the innermost list they belong to."""

from collections.abc import Sequence

from beamtree.data.listops.language import CLOSE, VALUE_OF


def tag_tokens(tokens: Sequence[str]) -> tuple[list[int], list[int]]:
    """(values, depths) of a sound expression. `[MAX` and `]` belong to the list they open and close.

    The outermost list has depth 1; a lone digit belongs to no list: its own value, depth 0.
    """
    values, depths = [0] * len(tokens), list[int]()
    opened: list[tuple[str, list[int], list[int]]] = []  # operator, its arguments, where its own tokens stand
    for place, token in enumerate(tokens):
        if token in VALUE_OF:
            opened.append((token, [], []))
        depths.append(len(opened))
        if not opened:
            values[place] = int(token)
            continue
        operator, arguments, own = opened[-1]
        own.append(place)
        if token == CLOSE:
            opened.pop()
            value = VALUE_OF[operator](arguments)
            for mine in own:
                values[mine] = value
            if opened:
                opened[-1][1].append(value)
        elif token not in VALUE_OF:
            arguments.append(int(token))
    return values, depths
