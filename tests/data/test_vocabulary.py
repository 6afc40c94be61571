"""Token numbers are fixed by the order of the tokens and survive a round trip through a plain file."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.data.vocabulary import PAD, SEP, UNK, Vocabulary
from beamtree.errors import BeamtreeError

LISTOPS = ("[MIN", "[MAX", "[MED", "[SM", "]", *"0123456789")


def test_listops_has_18_numbers_of_which_the_first_three_are_special() -> None:
    vocabulary = Vocabulary(LISTOPS)
    assert len(vocabulary) == 18

    assert (PAD, UNK, SEP) == (0, 1, 2)
    assert vocabulary.encode(LISTOPS) == list(range(3, 18))
    assert vocabulary.decode([0, 1, 2, 3, 17]) == ("<pad>", "<unk>", "<sep>", "[MIN", "9")
    assert "]" in vocabulary
    assert ")" not in vocabulary


def test_unknown_words_and_words_spelt_like_special_ones_are_unknown() -> None:
    assert Vocabulary(("a", "b")).encode(["a", "zebra", "<pad>", "<sep>", "b"]) == [3, UNK, UNK, UNK, 4]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(min_size=1), unique=True))
def test_any_tokens_survive_encoding_and_the_file(tokens: list[str]) -> None:
    vocabulary = Vocabulary(tuple(dict.fromkeys([*tokens, "\u2028", '"', "é", "\n"])))
    with TemporaryDirectory() as folder:
        vocabulary.save(Path(folder) / "vocabulary.json")
        assert Vocabulary.load(Path(folder) / "vocabulary.json") == vocabulary
    assert vocabulary.decode(vocabulary.encode(vocabulary.tokens)) == vocabulary.tokens


def test_the_file_has_one_token_a_line(tmp_path: Path) -> None:
    Vocabulary(("[MAX", "é")).save(tmp_path / "vocabulary.json")
    assert (tmp_path / "vocabulary.json").read_text(encoding="utf-8") == '[\n"[MAX",\n"é"\n]\n'


def test_a_token_listed_twice_is_refused_by_name() -> None:
    with pytest.raises(BeamtreeError, match="the vocabulary lists 'b' twice"):
        Vocabulary(("a", "b", "c", "b"))


@pytest.mark.parametrize("number", [-1, 4])
def test_a_number_outside_the_vocabulary_is_refused(number: int) -> None:
    with pytest.raises(IndexError, match=f"the vocabulary has numbers 0 to 3, got {number}"):
        Vocabulary(("a",)).decode([number])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('["a", ', "vocabulary.json is not JSON"),
        ('{"a": 3}', "must be a JSON list of strings"),
        ('["a", 3]', "must be a JSON list of strings"),
        ('["a", "a"]', "lists 'a' twice"),
    ],
)
def test_an_invalid_file_is_refused_with_its_name(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "vocabulary.json").write_text(content)
    with pytest.raises(BeamtreeError, match=message):
        Vocabulary.load(tmp_path / "vocabulary.json")


def test_a_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(BeamtreeError, match=r"cannot read .*nowhere\.json: No such file"):
        Vocabulary.load(tmp_path / "nowhere.json")


def test_a_vocabulary_of_400_000_words_is_saved_and_read(tmp_path: Path) -> None:
    words = Vocabulary(tuple(f"слово{i}, [и]" for i in range(400_000)))
    words.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == words
