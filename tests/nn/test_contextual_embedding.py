"""Token vectors of a frozen Hugging Face encoder are those that transformers gives, pooled and scaled."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hugging_face import save_bert, save_gpt
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from beamtree.data.batching import EncodedExamples
from beamtree.data.hugging_face import HuggingFaceEncoder, SubwordVocabulary, find_encoder
from beamtree.data.task import Example
from beamtree.nn.embedding import ContextualEmbedding, ProjectedEmbedding

TEXTS = [
    ("the", "Filming", "was", "unwatchable", "."),
    ("good",),
    ("not", "bad"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def encoder(folder: Path) -> HuggingFaceEncoder:
    return HuggingFaceEncoder(str(folder), folder, find_encoder(str(folder)).sha256)


def ids_of(encoder: HuggingFaceEncoder, texts: list[tuple[str, ...]]) -> Tensor:
    examples = [Example((words,), "") for words in texts]
    encoded = EncodedExamples.encode(examples, SubwordVocabulary(encoder), None)
    return encoded.collate(np.arange(len(texts))).ids


def by_transformers(folder: Path, words: tuple[str, ...]) -> Tensor:
    """One text by the plain calls of the library."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    encoding = tokenizer(list(words), is_split_into_words=True, return_tensors="pt", truncation=False)
    with torch.no_grad():
        hidden = model(encoding["input_ids"], encoding["attention_mask"]).last_hidden_state[0]
    its = torch.tensor([-1 if word is None else word for word in encoding.word_ids(0)])
    means = torch.stack([hidden[its == word].mean(0) for word in range(len(words))])
    return F.layer_norm(means, means.shape[-1:])


def test_vectors_are_those_of_transformers_whatever_stands_beside_a_text(
    folder: Path, encoder: HuggingFaceEncoder
) -> None:
    embedding = ContextualEmbedding(encoder).eval()
    ids = ids_of(encoder, TEXTS)
    found, padding = embedding(ids), embedding.padding(ids)
    assert found.shape == (3, 5, 16)
    for vectors, pad, words in zip(found, padding, TEXTS, strict=True):
        torch.testing.assert_close(vectors[~pad], by_transformers(folder, words), atol=1e-5, rtol=1e-4)
        assert not vectors[pad].any()
        assert int((~pad).sum()) == len(words)


def test_context_counts(encoder: HuggingFaceEncoder) -> None:
    embedding = ContextualEmbedding(encoder)
    alone, after = embedding(ids_of(encoder, [("good",), ("not", "good")])).detach()
    assert (alone[0] - after[1]).abs().max() > 0.1


def test_a_text_too_long_for_the_encoder_is_read_in_parts(folder: Path, encoder: HuggingFaceEncoder) -> None:
    assert encoder.room == 28
    words = ("film",) * 25 + ("bad", "good", "was") + ("the",) * 30
    found = ContextualEmbedding(encoder)(ids_of(encoder, [words, ("good",)]))[0]
    parts = [by_transformers(folder, words[start : start + 28]) for start in (0, 28, 56)]
    torch.testing.assert_close(found, torch.cat(parts), atol=1e-5, rtol=1e-4)


def test_what_is_remembered_is_not_read_again(
    encoder: HuggingFaceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedding = ContextualEmbedding(encoder)
    ids = ids_of(encoder, TEXTS)
    read = embedding(ids)
    examples = [Example((words,), "") for words in TEXTS * 2]
    split = EncodedExamples.encode(examples, SubwordVocabulary(encoder), None)
    rows, told = embedding.unread([split, split]), []
    assert embedding.bytes_of(rows) == read[~embedding.padding(ids)].nbytes
    monkeypatch.setattr("beamtree.nn.embedding._SUBWORDS_AT_ONCE", 20)  # two texts, then the long
    embedding.remember(rows, ids.device, told.append)
    assert told == [2, 3]
    assert not embedding.unread([split])
    monkeypatch.setattr(ContextualEmbedding, "_encode", None)
    torch.testing.assert_close(embedding(ids), read, atol=1e-5, rtol=1e-4)
    with pytest.raises(TypeError):
        embedding(ids_of(encoder, [("film",)]))


def test_many_texts_give_what_each_gives_alone(
    encoder: HuggingFaceEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [("good", "film")[: 1 + i % 2] * (1 + i % 7) for i in range(40)]
    monkeypatch.setattr("beamtree.nn.embedding._SUBWORDS_AT_ONCE", 50)
    embedding = ContextualEmbedding(encoder)
    together = embedding(ids_of(encoder, texts))
    for words, found in zip(texts, together, strict=True):
        alone = embedding(ids_of(encoder, [words]))[0]
        torch.testing.assert_close(found[: len(words)], alone, atol=1e-5, rtol=1e-4)


def test_the_encoder_is_not_among_the_weights_never_drops_and_is_never_copied(
    encoder: HuggingFaceEncoder,
) -> None:
    embedding = ContextualEmbedding(encoder).train()
    assert not embedding.state_dict()
    ids = ids_of(encoder, TEXTS)
    torch.testing.assert_close(embedding(ids), embedding(ids))
    assert not embedding(ids).requires_grad
    assert copy.deepcopy(embedding).encoder is encoder
    again = pickle.loads(pickle.dumps(embedding))
    assert again.encoder.sha256 == encoder.sha256
    torch.testing.assert_close(again(ids), embedding(ids))


def test_words_are_dropped_in_training_alone(encoder: HuggingFaceEncoder) -> None:
    embedding = ContextualEmbedding(encoder, word_dropout=0.5)
    ids = ids_of(encoder, [("good",) * 20])
    torch.manual_seed(0)
    dropped = (embedding(ids)[0] == 0).all(-1)
    assert 0 < int(dropped.sum()) < 20
    assert (embedding.eval()(ids)[0] != 0).any(-1).all()


def test_after_a_projection_padding_is_still_zero(encoder: HuggingFaceEncoder) -> None:
    projected = ProjectedEmbedding(ContextualEmbedding(encoder), 6)
    ids = ids_of(encoder, TEXTS)
    found = projected(ids)
    assert found.shape == (3, 5, 6)
    assert not found[projected.padding(ids)].any()


def test_an_encoder_without_special_tokens_or_padding_reads_too(tmp_path: Path) -> None:
    encoder = find_encoder(str(save_gpt(tmp_path)))
    assert (encoder.before, encoder.after) == ([], [])
    embedding = ContextualEmbedding(encoder)
    together = embedding(ids_of(encoder, TEXTS))
    alone = embedding(ids_of(encoder, TEXTS[2:]))
    torch.testing.assert_close(together[2, :2], alone[0], atol=1e-5, rtol=1e-4)
