"""Subwords to words: the mean of each word's subwords, wherever padding and special tokens stand."""

from pathlib import Path

import pytest
import torch
from hugging_face import save_bert
from torch import Tensor
from transformers import AutoTokenizer

from beamtree import BeamTreeEncoder, SubwordsToWords


def obviously(x: Tensor, word_ids: Tensor) -> list[Tensor]:
    """The words of each row, one after the other."""
    rows = []
    for vectors, words in zip(x, word_ids.tolist(), strict=True):
        means = []
        for word in range(max(words) + 1):
            own = [vector for vector, its in zip(vectors, words, strict=True) if its == word]
            means.append(sum(own) / len(own) if own else torch.zeros_like(x[0, 0]))
        rows.append(torch.stack(means))
    return rows


WORD_IDS = torch.tensor(
    [
        [-1, 0, 0, 1, 2, 2, 2, -1],
        [-1, 0, 1, -1, -1, -1, -1, -1],
        [-1, -1, -1, -1, -1, 0, 0, -1],  # padded on the left
        [-1, 0, 2, 2, 3, -1, -1, -1],  # nothing is left of a word
    ]
)


def test_a_word_is_the_mean_of_its_subwords_and_words_stand_on_the_left() -> None:
    x = torch.randn(4, 8, 5, dtype=torch.float64)
    words, is_pad = SubwordsToWords()(x, WORD_IDS)
    assert words.shape == (4, 4, 5)
    for found, pad, wanted in zip(words, is_pad, obviously(x, WORD_IDS), strict=True):
        torch.testing.assert_close(found[: len(wanted)], wanted)
        assert pad.tolist() == [False] * len(wanted) + [True] * (4 - len(wanted))
        assert not found[len(wanted) :].any()


def test_special_tokens_and_padding_count_for_nothing_and_gradients_are_right() -> None:
    x = torch.randn(4, 8, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: SubwordsToWords()(x, WORD_IDS)[0], (x,))
    SubwordsToWords()(x, WORD_IDS)[0].sum().backward()
    assert x.grad is not None
    assert not x.grad[WORD_IDS == -1].any()
    assert (x.grad[WORD_IDS >= 0] > 0).all()


def test_a_tree_takes_what_it_gives() -> None:
    x = torch.randn(4, 8, 6)
    words, is_pad = SubwordsToWords()(x, WORD_IDS)
    _, trees = BeamTreeEncoder(8, input_size=6)(words, key_padding_mask=is_pad, need_trees=True)
    assert [brackets.count("(") for brackets in trees.brackets()] == [2, 1, 0, 3]


@pytest.mark.parametrize("side", ["left", "right"])
def test_word_ids_of_a_tokenizer_s_batch(tmp_path: Path, side: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(save_bert(tmp_path), padding_side=side)
    encoding = tokenizer(["The filming was good", "bad"], padding=True)
    found = SubwordsToWords.word_ids(encoding)
    shorter = [0] if side == "left" else [0, -1, -1, -1, -1]
    filled = [-1] * 5 if side == "left" else [-1]
    assert found.tolist() == [[-1, 0, 1, 1, 2, 3, -1], [*filled, *shorter, -1][:7]]


def test_what_tells_no_words_apart_and_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="word ids need a fast tokenizer"):
        SubwordsToWords.word_ids({"input_ids": [[1, 2]]})
    with pytest.raises(ValueError, match=r"word_ids must be \(B, s\) for x .*\(4, 7\) and \(4, 8, 5\)"):
        SubwordsToWords()(torch.zeros(4, 8, 5), WORD_IDS[:, :7])


def test_nan_at_special_tokens_and_padding_has_no_effect_and_leaves_no_gradient() -> None:
    x = torch.randn(4, 8, 5, dtype=torch.float64)
    spoilt = x.masked_fill((WORD_IDS < 0).unsqueeze(-1), torch.nan).requires_grad_()
    words, _ = SubwordsToWords()(spoilt, WORD_IDS)
    torch.testing.assert_close(words, SubwordsToWords()(x, WORD_IDS)[0])
    words.sum().backward()
    assert spoilt.grad.isfinite().all()
