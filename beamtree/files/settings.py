"""Converts TOML or JSON tables to frozen dataclasses and back, checking every key, type and range."""

import dataclasses
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from beamtree.errors import BeamtreeError, first_line, nearest
from beamtree.files.bounded import read_text, shown
from beamtree.printable import HALVES, printable, write_json

Settings = TypeVar("Settings")
Table = dict[str, Any]

_KINDS = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false"}

_LARGEST_INTEGER = 2**63 - 1  # the range that TOML guarantees
_LARGEST_FILE = 256 << 10  # bytes; parsing TOML can take 400 times as many in memory

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
# The memory that a key takes grows with the square of the number of its parts.
_LONG_KEY = re.compile(rf"{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{20}}")
_NO_TOML = re.compile(f"[{HALVES}]")


def setting(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Make a dataclass field with a range or choices, and the comment that is written next to it in a file.

    A section is a plain `field` with `help` in its metadata; its type is another settings class, or `dict`
    for free keys.
    """
    metadata = {"help": help, "least": least, "most": most, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


def from_table(kind: type[Settings], table: Mapping[str, Any], *, source: str, prefix: str = "") -> Settings:
    """Make an object of class `kind` from a table; `source` (a file, `--set`) is named in every error.

    Raises `BeamtreeError` for an unknown key and for a value of the wrong type or out of range.
    """
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in table.items():
        if key not in fields:
            known = nearest(key, fields, prefix=prefix)
            raise BeamtreeError(f"{source}: there is no setting {shown(prefix + key)}{known}")
        values[key] = _checked(hints[key], value, fields[key].metadata, source, prefix + key)
    return kind(**values)


def _checked(wanted: Any, value: Any, metadata: Mapping[str, Any], source: str, key: str) -> Any:
    if wanted not in _KINDS:
        if not isinstance(value, Mapping):
            raise BeamtreeError(f"{source}: {key} must be a section [{key}], got {shown(value)}")
        if dataclasses.is_dataclass(wanted):
            return from_table(wanted, value, source=source, prefix=key + ".")  # type: ignore[arg-type]
        return _free_options(value, source, key)
    if type(value) is int and abs(value) > _LARGEST_INTEGER:
        raise BeamtreeError(
            f"{source}: {key} must be {_KINDS[wanted]} of at most 64 bits, got {shown(value)}"
        )
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted or (wanted is float and not math.isfinite(value)):
        raise BeamtreeError(f"{source}: {key} must be {_KINDS[wanted]}, got {shown(value)}")
    if wanted is str and _NO_TOML.search(value):
        raise BeamtreeError(f"{source}: {key} must be Unicode text, got {shown(value)}")
    least, most, choices = map(metadata.get, ("least", "most", "choices"))
    if least is not None and value < least:
        raise BeamtreeError(f"{source}: {key} must be at least {least:g}, got {shown(value)}")
    if most is not None and value > most:
        raise BeamtreeError(f"{source}: {key} must be at most {most:g}, got {shown(value)}")
    if choices is not None and value not in choices:
        raise BeamtreeError(f"{source}: {key} must be one of {', '.join(choices)}, got {shown(value)}")
    return value


def _free_options(value: Mapping[str, Any], source: str, key: str) -> Table:
    for name, option in value.items():
        place = f"{key}.{printable(name[:80])}"
        if type(option) not in _KINDS:
            raise BeamtreeError(
                f"{source}: {place} must be a number, text or true/false, got {shown(option)}"
            )
        _checked(type(option), option, {}, source, place)
    return dict(value)


def read_toml(path: Path) -> Table:
    """Read the tables of a TOML file; a syntax error names the file and the line."""
    try:
        return _parse_toml(read_text(path, largest=_LARGEST_FILE))
    except BeamtreeError:
        raise
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError is a ValueError
        raise BeamtreeError(f"{path} is not valid TOML: {first_line(error)}") from error


def _parse_toml(text: str) -> Table:
    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 20 parts")
    return tomllib.loads(text)


def merge_tables(base: Table, over: Table) -> Table:
    """Return `base` with the values of `over` replacing its own, section by section."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = (
            merge_tables(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
        )
    return merged


def assignment(text: str) -> Table:
    """Parse `section.key=value` into a table; a value that is not valid TOML is taken as text."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise BeamtreeError(f"--set needs section.key=value, for instance training.seed=1, got {text!r}")
    try:
        leaf = _parse_toml(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        leaf = value.strip()
    for part in reversed(parts):
        leaf = {part: leaf}
    return dict(leaf)


def to_toml(settings: Any, title: str) -> str:
    """Return settings as a commented TOML file; `from_table` turns its tables back into an equal object."""
    return "\n".join([f"# {line}" for line in title.splitlines()] + list(_lines(settings, ""))) + "\n"


def _lines(settings: Any, prefix: str) -> Iterator[str]:
    sections = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, dict) or dataclasses.is_dataclass(value):
            sections.append((prefix + field.name, value, field.metadata["help"]))
        else:
            yield f"{field.name} = {_toml_value(value)}  # {field.metadata['help']}"
    for name, value, help in sections:
        yield ""
        yield f"# {help}"
        yield f"[{name}]"
        if isinstance(value, dict):
            for key, option in value.items():
                yield f"{key if _BARE_KEY.fullmatch(key) else _toml_value(key)} = {_toml_value(option)}"
        else:
            yield from _lines(value, name + ".")


def _toml_value(value: Any) -> str:
    # JSON strings, booleans and numbers are valid TOML, as `write_json` escapes control character 127.
    return write_json(value, ensure_ascii=False)
