"""Settings: files become checked objects; a complaint names file, key, what came and what is wanted."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.errors import BeamtreeError
from beamtree.files.settings import assignment, from_table, merge_tables, read_toml, setting, to_toml
from beamtree.training.recipe import load_recipe


@dataclass(frozen=True)
class Inner:
    rate: float = setting(0.5, "how fast", least=0, most=1)
    options: dict[str, Any] = field(default_factory=dict, metadata={"help": "Anything."})


@dataclass(frozen=True)
class Outer:
    name: str = setting("a", "who")
    count: int = setting(3, "how many", least=1)
    exact: bool = setting(False, "whether")
    kind: str = setting("loss", "which", choices=("loss", "accuracy"))
    inner: Inner = field(default_factory=Inner, metadata={"help": "Inside."})


def refusal(table: dict[str, Any]) -> str:
    with pytest.raises(BeamtreeError) as caught:
        from_table(Outer, table, source="file.toml")
    return str(caught.value)


def test_missing_keys_take_their_defaults() -> None:
    assert from_table(Outer, {}, source="x") == Outer()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"cuont": 1}, "file.toml: there is no setting 'cuont'; did you mean 'count'?"),
        (
            {"zzzz": 1},
            "file.toml: there is no setting 'zzzz'; there are name, count, exact, kind, inner",
        ),
        ({"inner": {"rat": 1}}, "file.toml: there is no setting 'inner.rat'; did you mean 'inner.rate'?"),
        ({"count": "3"}, "file.toml: count must be a whole number, got '3'"),
        ({"count": True}, "file.toml: count must be a whole number, got True"),
        ({"count": 1.0}, "file.toml: count must be a whole number, got 1.0"),
        ({"name": 5}, "file.toml: name must be text in quotes, got 5"),
        ({"exact": 1}, "file.toml: exact must be true or false, got 1"),
        ({"inner": {"rate": "x"}}, "file.toml: inner.rate must be a number, got 'x'"),
        ({"inner": {"rate": float("nan")}}, "file.toml: inner.rate must be a number, got nan"),
        ({"inner": {"rate": 2}}, "file.toml: inner.rate must be at most 1, got 2.0"),
        ({"count": 0}, "file.toml: count must be at least 1, got 0"),
        ({"kind": "f1"}, "file.toml: kind must be one of loss, accuracy, got 'f1'"),
        ({"inner": 5}, "file.toml: inner must be a section [inner], got 5"),
        ({"inner": {"options": 5}}, "file.toml: inner.options must be a section [inner.options], got 5"),
        (
            {"inner": {"options": {"deep": [1]}}},
            "file.toml: inner.options.deep must be a number, text or true/false, got [1]",
        ),
        (
            {"inner": {"options": {"half": "\ud800"}}},
            "file.toml: inner.options.half must be Unicode text, got '\\ud800'",
        ),
        (
            {"inner": {"options": {"\x1b" + "x" * 5000: 2**64}}},
            (
                f"file.toml: inner.options.\\x1b{'x' * 79} must be a whole number of at most 64 bits, "
                f"got {2**64}"
            ),
        ),
    ],
)
def test_a_wrong_table_is_refused_by_a_message_that_names_it(table: dict[str, Any], message: str) -> None:
    assert refusal(table) == message


def test_a_whole_number_will_do_for_a_number() -> None:
    rate = from_table(Outer, {"inner": {"rate": 1}}, source="x").inner.rate
    assert rate == 1.0
    assert type(rate) is float


text = st.text(st.characters(blacklist_categories=("Cs",)))
numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(
    name=text,
    count=st.integers(1, 2**62),
    exact=st.booleans(),
    kind=st.sampled_from(["loss", "accuracy"]),
    rate=st.floats(0, 1),
    options=st.dictionaries(text, st.one_of(text, numbers, st.booleans(), st.integers(-(2**62), 2**62))),
)
def test_what_is_written_is_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    count: int,
    exact: bool,
    kind: str,
    rate: float,
    options: dict[str, Any],
) -> None:
    settings = Outer(name, count, exact, kind, Inner(rate, options))
    path = tmp_path_factory.mktemp("settings") / "file.toml"
    path.write_bytes(to_toml(settings, "A title.").encode())
    assert from_table(Outer, read_toml(path), source="x") == settings


def test_every_setting_is_explained_in_the_written_file() -> None:
    written = to_toml(Outer(inner=Inner(options={"beam_size": 5})), "Two\nlines.")
    assert written.startswith("# Two\n# lines.\n")
    assert "count = 3  # how many" in written
    assert "# Inside.\n[inner]\nrate = 0.5  # how fast" in written
    assert "# Anything.\n[inner.options]\nbeam_size = 5\n" in written


def test_a_broken_file_is_refused_with_its_name_and_line(tmp_path: Any) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("a = 1\nb = = 2\n")
    with pytest.raises(BeamtreeError, match=r"broken\.toml is not valid TOML: .*line 2"):
        read_toml(path)
    path.write_bytes(b"a = '\xff'\n")
    with pytest.raises(BeamtreeError, match=r"broken\.toml is not UTF-8 text: invalid start byte at byte 5"):
        read_toml(path)
    with pytest.raises(BeamtreeError, match=r"cannot read .*absent\.toml: No such file"):
        read_toml(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("given_text", "table"),
    [
        ("a.b=1", {"a": {"b": 1}}),
        ("a.b = 1.5", {"a": {"b": 1.5}}),
        ("a=true", {"a": True}),
        ("a=ebt-grc", {"a": "ebt-grc"}),
        ('a="1"', {"a": "1"}),
        ("a.b.c=x=y", {"a": {"b": {"c": "x=y"}}}),
        ("a=", {"a": ""}),
    ],
)
def test_an_assignment_is_a_table(given_text: str, table: dict[str, Any]) -> None:
    assert assignment(given_text) == table


@pytest.mark.parametrize("given_text", ["", "a", "=1", "a..b=1", ".a=1"])
def test_what_is_no_assignment_is_refused_with_an_example(given_text: str) -> None:
    with pytest.raises(BeamtreeError, match=r"--set needs section\.key=value, for instance training\.seed=1"):
        assignment(given_text)


def test_merging_goes_section_by_section_and_leaves_its_arguments_alone() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": 3}
    assert merge_tables(base, {"a": {"y": 5}, "c": 6}) == {"a": {"x": 1, "y": 5}, "b": 3, "c": 6}
    assert merge_tables(base, {"a": 1}) == {"a": 1, "b": 3}
    assert base == {"a": {"x": 1, "y": 2}, "b": 3}


def test_a_key_of_many_parts_is_refused_and_texts_with_dots_are_not(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[task.own]\nlabel = '" + "a.b... 0.5, " * 200 + "'\n")
    assert load_recipe(path).task.own.label.count(".") == 1000
    for text in (
        "a . " * 20 + "a = 1",
        "['a'" + ".'a'" * 20 + "]",
        '"\\"".' * 20 + "a = 1",
        f"x = {{{'a.' * 20}a = 1}}",
    ):
        path.write_text(text)
        with pytest.raises(
            BeamtreeError, match=r"recipe\.toml is not valid TOML: a key has more than 20 parts"
        ):
            load_recipe(path)
    assert assignment(f"task.name={{{'a.' * 20}a=1}}") == {"task": {"name": f"{{{'a.' * 20}a=1}}"}}
