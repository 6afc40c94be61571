"""The word tokeniser: Penn treebank's manner, the same words from plain text and from tokenised text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beamtree.data.tokenizers import tokenize


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man sleeps.", "a man sleeps ."),
        ("I didn't, can't and won't!", "i did n't , ca n't and wo n't !"),
        ("It's Bob's; they're ours, I'd say we'll've", "it 's bob 's ; they 're ours , i 'd say we 'll 've"),
        ("You cannot; I'm gonna, gotta, wanna.", "you can not ; i 'm gon na , got ta , wan na ."),
        ('"Good," he said', '" good , " he said'),
        ("``Good,'' he said, `well'", "\" good , \" he said , ' well '"),
        ("a `word", "a ' word"),
        ("inches'' wide", 'inches " wide'),
        ("“Good” – it’s…", '" good " – it \'s ...'),
        ("The end.The next....And", "the end . the next ... and"),
        (
            "Mr. Smith of the U.S. at 10:30 a.m. paid $1,000.50",
            "mr. smith of the u.s. at 10:30 a.m. paid $ 1,000.50",
        ),
        ("well-known and/or AT&T o'clock rock'n'roll", "well-known and/or at&t o'clock rock'n'roll"),
        ("the students' books--both", "the students ' books -- both"),
        ("_very_ (good) 80s 3D", "_ very _ ( good ) 80s 3d"),
        ("cafe\u0301 caf\u00e9", "caf\u00e9 caf\u00e9"),
        ("a\x96b\xa0c", "a b c"),
        ("   ", ""),
    ],
)
def test_words_are_cut_as_the_treebank_does(text: str, words: str) -> None:
    assert " ".join(tokenize(text)) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I DIDN'T, Can't.", "I DID N'T , Ca n't ."),
        ("Mr. Smith of the U.S., IT'S Bob's", "Mr. Smith of the U.S. , IT 'S Bob 's"),
    ],
)
def test_words_may_keep_their_capitals(text: str, words: str) -> None:
    assert " ".join(tokenize(text, cased=True)) == words


@given(st.text(st.sampled_from("aNnT't.S -`\"s0")))
def test_capitals_change_no_boundary(text: str) -> None:
    assert tuple(word.lower() for word in tokenize(text, cased=True)) == tokenize(text)


@given(st.text(alphabet="aZnt09éß.,'`\"-/&_:!?()$% \u2019\u201c\x96…", max_size=40))
def test_tokenised_text_stays_as_it_is(text: str) -> None:
    words = tokenize(text)
    assert tokenize(" ".join(words)) == words


@given(st.text(max_size=60))
def test_every_chunk_of_any_text_gives_a_word_at_least(text: str) -> None:
    words = tokenize(text)
    assert all(word and not any(letter.isspace() for letter in word) for word in words)
    assert len(words) >= len([chunk for chunk in text.lower().split() if chunk[0].isalnum()])


@pytest.mark.parametrize("piece", ["a-", "a'", "1,", "a.", "'", "n't", "....", "é "])
def test_time_grows_with_length_alone(piece: str) -> None:
    began = time.process_time()
    tokenize(piece * 100_000)
    assert time.process_time() - began < 3
