"""Texts that no parser wants: expressions cut and stirred, brackets, odd characters, lines without end."""

import random

ODD = [*"\0\ufeffé\u202e😀\u2028\x85\xa0\ud800()[]\t\r\x1f٣\x1b\x9b"]
LISTOPS = ["[MAX", "[MIN", "[MED", "[SM", "]", *"0123456789", "(", ")"]
LOGIC = ["(", ")", "a", "b", "f", "and", "or", "not"]


def expression(draw: random.Random, depth: int = 4) -> str:
    """A sound ListOps expression."""
    if depth == 0 or draw.random() < 0.4:
        return draw.choice("0123456789")
    arguments = " ".join(expression(draw, depth - 1) for _ in range(draw.randint(1, 4)))
    return f"{draw.choice(LISTOPS[:4])} {arguments} ]"


def formula(draw: random.Random, depth: int = 4) -> str:
    """A sound formula of the logic task."""
    if depth == 0 or draw.random() < 0.4:
        return draw.choice("abcdef")
    if draw.random() < 0.3:
        return f"( not {formula(draw, depth - 1)} )"
    return f"( {formula(draw, depth - 1)} ( {draw.choice(['and', 'or'])} {formula(draw, depth - 1)} ) )"


def tree(draw: random.Random, depth: int = 4) -> str:
    """A sound binary tree in brackets."""
    if depth == 0 or draw.random() < 0.4:
        return draw.choice(["a", "the", "-LRB-", "é", "␣", "xy"])
    return f"({tree(draw, depth - 1)} {tree(draw, depth - 1)})"


def stirred(draw: random.Random, text: str) -> str:
    """The text with a few characters or words changed, moved, doubled or gone."""
    for _ in range(draw.choice([0, 1, 1, 2, 5])):
        words = text.split(" ")
        place, other = draw.randrange(len(words)), draw.randrange(len(words))
        match draw.randrange(6):
            case 0:
                del words[place]
            case 1:
                words.insert(place, draw.choice([*LISTOPS, *LOGIC, *ODD, ""]))
            case 2:
                words[place], words[other] = words[other], words[place]
            case 3:
                words[place] = words[place] + draw.choice(ODD)
            case 4:
                words = words[:place]
            case 5:
                words += words[place:]
        text = " ".join(words)
    return text


def soup(draw: random.Random) -> str:
    """Words in any order, characters in any order, or one thing very often."""
    match draw.randrange(4):
        case 0:
            return " ".join(draw.choices([*LISTOPS, *LOGIC], k=draw.randrange(30)))
        case 1:
            return "".join(draw.choices(ODD, k=draw.randrange(30)))
        case 2:
            return "".join(
                chr(draw.choice([draw.randrange(32, 127), draw.randrange(0xD7FF)])) for _ in range(20)
            )
        case _:
            return draw.choice([*LISTOPS, *LOGIC, *ODD, "( "]) * draw.choice([0, 1, 100, 5000])


def endless(tokens: int) -> dict[str, str]:
    """Lines of so many tokens: sound ones that are wide and deep, and unsound ones."""
    half = tokens // 2
    return {
        "a wide expression": "[MAX " + "1 " * (tokens - 2) + "]",
        "a deep expression": "[SM " * half + "1" + " ]" * half,
        "an unclosed expression": "[MAX 1 " * half,
        "round brackets": "( " * half + "1 " + ") " * half,
        "one word": "9" * tokens,
        "a deep formula": "( not " * half + "a" + " )" * half,
        "an unclosed formula": "( " * tokens,
        "a deep tree": "(" * half + "a" + " b)" * half,
        "an unclosed tree": "(" * tokens,
        "tabs": "\t" * tokens,
    }
