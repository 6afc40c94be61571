"""Random ways to damage bytes, values, files and texts, drawn from a seeded generator."""

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

# Names that no file, setting or model should have.
NAMES = [
    *("../../../../etc/passwd", "/etc/passwd", "a\0b", "x" * 5000, "os.system", "__import__('os')"),
    *("é\u202e", "\x1b]0;x\x07\x9b31m\n# x", ""),
]
# Characters that are likely to upset a parser.
ODD = [*"\0\ufeffé\u202e😀\u2028\x85\xa0\ud800()[]\t\r\x1f٣\x1b\x9b"]
LISTOPS = ["[MAX", "[MIN", "[MED", "[SM", "]", *"0123456789", "(", ")"]
LOGIC = ["(", ")", "a", "b", "f", "and", "or", "not"]


def spoil_bytes(draw: random.Random, content: bytes) -> bytes:
    """Cut, flip, overwrite, insert, remove or repeat some bytes."""
    place = draw.randrange(len(content) + 1)
    some = draw.randbytes(draw.choice([1, 2, 8, 64, 1024]))
    match draw.randrange(7):
        case 0:
            return content[:place]
        case 1:
            spoilt = bytearray(content or b"\0")
            for _ in range(draw.choice([1, 1, 2, 8])):
                spoilt[draw.randrange(len(spoilt))] ^= 1 << draw.randrange(8)
            return bytes(spoilt)
        case 2:
            return content[:place] + some + content[place + len(some) :]
        case 3:
            return content[:place] + some + content[place:]
        case 4:
            return content[:place] + content[place + len(some) :]
        case 5:
            return content + content[place:]
        case _:
            return some


def hostile_value(draw: random.Random) -> Any:
    """A value that JSON can hold but that is wrong or absurd for a setting."""
    return draw.choice(
        [
            *(None, True, False, [], {}, -1, 0, 1, 2, 7, 65536, 2**31, 2**63, 10**30, int("9" * 4000)),
            *(0.5, -0.0, 1e308, float("nan"), float("inf"), 1e-320),
            *NAMES,
            [[[[1]]]],
            {"a": {"b": {}}},
            "9" * 50,
            list(range(1000)),
            json.loads("[" * 5 + "]" * 5),
            json.loads("[" * 400 + "]" * 400),
        ]
    )


def spoil_json(draw: random.Random, value: Any) -> Any:
    """Change, remove or add a value somewhere in the tables and lists."""
    value = json.loads(json.dumps(value))
    places: list[Any] = [value]
    for place in places:
        children = place.values() if isinstance(place, dict) else place
        places += [child for child in children if isinstance(child, (dict, list))]
    place = draw.choice([place for place in places if place] or [value])
    key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
    match draw.randrange(4):
        case 0:
            del place[key]
        case 1 if isinstance(place, dict):
            place[draw.choice([*NAMES, "device", "cell", "extends", "beam_size"])] = hostile_value(draw)
        case _:
            place[key] = hostile_value(draw)
    return value


def spoil_place(draw: random.Random, path: Path) -> None:
    """Replace a file with something else, or with a file that is empty or too large to read."""
    path.unlink()
    match draw.randrange(8):
        case 0:
            pass
        case 1:
            path.mkdir()
        case 2:
            os.mkfifo(path)
        case 3:
            path.symlink_to(path.name)
        case 4:
            path.symlink_to(
                draw.choice(["/etc/passwd", "/dev/zero", "/dev/null", "/nowhere", "/proc/self/maps"])
            )
        case 5:
            path.symlink_to(path.parent)
        case 6:
            path.touch()
        case 7:
            path.touch()
            os.truncate(path, draw.choice([1 << 31, 1 << 40]))


def replant(good: dict[str, bytes], folder: Path) -> None:
    """Restore the undamaged folder."""
    if folder.exists() or folder.is_symlink():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for name, content in good.items():
        (folder / name).write_bytes(content)


def hostile_safetensors(draw: random.Random) -> bytes:
    """A safetensors file with a false header, or something else entirely."""
    shape = draw.choice([[2**40], [2**62, 4], [-1], [0], [], [1] * 5000, [2**31, 2**31], ["x"], [1.5]])
    offsets = draw.choice([[0, 4], [0, 2**42], [8, 4], [-4, 0], [0, 0], [0], None])
    dtype = draw.choice(["F32", "F64", "I64", "BOOL", "F8_E4M3", "X", "", 5])
    entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
    table = {draw.choice([*NAMES, "head.out.bias"]): entry, "other": entry}
    notes = draw.choice(["null", "{", "[" * 3000, json.dumps({"notes": "{}", "sha256": "0"})])
    metadata = {"__metadata__": {"beamtree": notes}}
    headers = [json.dumps(header).encode() for header in (table, table | metadata, metadata)]
    headers += [b"[" * 10, b"[" * 100_000, b'{"a":' * 10_000]
    length = draw.choice([2**63, 2**64 - 1, 2**26, 3, 0])
    return draw.choice(
        [
            *(len(header).to_bytes(8, "little") + header + bytes(8) for header in headers),
            length.to_bytes(8, "little") + b"{}",
            b"cos\nsystem\n(S'touch executed'\ntR.",  # a pickle that runs a command
            b"PK\x03\x04" + draw.randbytes(200),
        ]
    )


def expression(draw: random.Random, depth: int = 4) -> str:
    """A valid ListOps expression."""
    if depth == 0 or draw.random() < 0.4:
        return draw.choice("0123456789")
    arguments = " ".join(expression(draw, depth - 1) for _ in range(draw.randint(1, 4)))
    return f"{draw.choice(LISTOPS[:4])} {arguments} ]"


def formula(draw: random.Random, depth: int = 4) -> str:
    """A valid formula of the logic task."""
    if depth == 0 or draw.random() < 0.4:
        return draw.choice("abcdef")
    if draw.random() < 0.3:
        return f"( not {formula(draw, depth - 1)} )"
    return f"( {formula(draw, depth - 1)} ( {draw.choice(['and', 'or'])} {formula(draw, depth - 1)} ) )"


def tree(draw: random.Random, depth: int = 4) -> str:
    """A valid binary tree in brackets."""
    if depth == 0 or draw.random() < 0.4:
        return draw.choice(["a", "the", "-LRB-", "é", "␣", "xy"])
    return f"({tree(draw, depth - 1)} {tree(draw, depth - 1)})"


def stirred(draw: random.Random, text: str) -> str:
    """The text with a few words or characters changed, moved, repeated or removed."""
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
    """Random words, random characters, or one word repeated many times."""
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
    """Lines of this many tokens: valid ones that are wide or deep, and invalid ones."""
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
