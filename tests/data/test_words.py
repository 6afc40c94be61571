"""Which words a model knows, which have pretrained vectors, and how these reach the encoder."""

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from small_language import WIDTH, examples_of, write_corpora, write_vectors

from beamtree.data.task import CountRule, Example, find_task
from beamtree.data.vectors import SHIPPED, SHIPPED_FILE, SHIPPED_SHA256, read_shipped
from beamtree.data.vocabulary import PAD, SEP, UNK, Vocabulary
from beamtree.data.words import VectorUse, Words, choose_words, find_words, saved_words
from beamtree.errors import BeamtreeError
from beamtree.nn.embedding import ProjectedEmbedding, TrainableEmbedding, WordEmbedding, create_embedding

RULE = CountRule(2, ("train", "test"))
SEEN = Counter({"film": 9, "a": 7, "i": 5, "rare": 4, "lovely": 1})
COUNTED = SEEN + Counter({"lovely": 1, "dull": 2, "once": 1, "unseen": 3})


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    return write_vectors(tmp_path / "vectors")


def test_words_with_a_vector_come_first_by_count_then_frequent_words_without_one(vectors: Path) -> None:
    words = choose_words(RULE, SEEN, COUNTED, vectors)
    assert words.vocabulary.tokens == ("film", "lovely", "dull", "a", "i")
    assert words.vectors is not None
    assert words.vectors.shape == (3, WIDTH)
    assert words.learnt == 2
    assert words.describe_vectors() == {"words": 3, "width": WIDTH, "dtype": "float16", "source": "small"}


@pytest.mark.parametrize(("least", "learnt"), [(0, ()), (4, ("a", "i", "rare")), (6, ("a",))])
def test_how_often_a_word_must_be_seen_to_learn_a_vector_can_be_chosen(
    least: int, learnt: tuple[str, ...], vectors: Path
) -> None:
    words = choose_words(RULE, SEEN, COUNTED, vectors, VectorUse(learn_missing=least))
    assert words.vocabulary.tokens[3:] == learnt


def test_a_word_too_rare_for_the_rule_learns_nothing_even_if_it_has_a_vector(vectors: Path) -> None:
    seen = Counter({"film": 9, "man": 5, "a": 9, "other": 5})
    assert choose_words(CountRule(6, ()), seen, seen, vectors).vocabulary.tokens == ("film", "a")


def test_vectors_that_have_the_commonest_words_leave_the_others_unknown(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("a 1 2\ni 3 4\nfilm 5 6\n")
    words = choose_words(RULE, SEEN, COUNTED, path)
    assert words.vocabulary.tokens == ("film", "a", "i")
    assert words.learnt == 0


def test_the_vocabulary_has_a_largest_size(vectors: Path) -> None:
    words = choose_words(CountRule(1, (), most=2), SEEN, COUNTED, vectors)
    assert len(words.vocabulary.tokens) == 2
    assert choose_words(CountRule(1, (), most=2), SEEN, COUNTED, None).vocabulary.tokens == ("film", "a")


def test_without_vectors_the_training_words_learn_theirs(tmp_path: Path) -> None:
    words = choose_words(RULE, SEEN, COUNTED, None)
    assert words.vocabulary.tokens == ("film", "a", "i", "rare")
    assert words.vectors is None
    assert words.describe_vectors() is None
    assert "no word vectors: all are learnt" in words.describe()
    path = tmp_path / "glove.txt"
    path.write_text("a 1 2\nother 3 4\n")
    with pytest.raises(BeamtreeError, match="a vector for none of the words of the data"):
        choose_words(RULE, Counter({"film": 9}), Counter({"film": 9}), path)


@pytest.mark.parametrize("task", ["sst5", "imdb", "snli", "mnli", "qqp"])
def test_unknown_words_are_reported_for_every_split_that_was_counted(task: str, tmp_path: Path) -> None:
    write_corpora(tmp_path)
    train, dev, words = examples_of(task, tmp_path)
    assert train
    assert dev
    rule = find_task(task).words
    assert rule is not None
    assert set(words.unknown) == {"train", "dev", *rule.counted}
    assert all(0 <= share < 0.9 for share in words.unknown.values())
    facts = words.facts()
    assert (facts["vectors"], facts["width"]) == ("small", WIDTH)
    assert "with vectors of small (6 wide, fixed)" in words.describe()


def test_a_share_of_unknown_words_is_that_of_running_words(tmp_path: Path) -> None:
    snli = find_task("snli")
    train = [Example((("film", "film"), ("x",)), "neutral"), Example((("film",), ("y",)), "neutral")]
    words = find_words(snli, tmp_path, train, train[:1], None)
    assert words.vocabulary.tokens == ("film",)
    assert words.unknown == {"train": pytest.approx(2 / 5), "dev": pytest.approx(1 / 3)}
    with pytest.raises(BeamtreeError, match="words of task 'listops' are fixed, not counted"):
        find_words(find_task("listops"), tmp_path, [], [], None)


def test_a_rare_word_is_one_of_few_training_sentences(tmp_path: Path) -> None:
    pair = (("film", "film", "good"), ("film", "a"))
    words = find_words(find_task("snli"), tmp_path, [Example(pair, "neutral")] * 2, [], None)
    assert words.rarity is not None
    rarity = dict(zip(words.own.tokens, words.rarity.tolist(), strict=True))
    assert rarity == pytest.approx({"film": 1.0, "good": 1 + math.log(5 / 3), "a": 1 + math.log(5 / 3)})


def test_words_of_data_without_files_are_those_of_the_examples_and_learn_as_often_as_chosen(
    vectors: Path, tmp_path: Path
) -> None:
    train = [Example((("film", "a", "a"),), "neutral"), Example((("film", "i"),), "neutral")]
    for least, learnt in ((None, ()), (2, ("a",)), (1, ("a", "i"))):
        words = find_words(find_task("sst5"), tmp_path, train, train, vectors, VectorUse(learn_missing=least))
        assert words.vocabulary.tokens == ("film", *learnt)


@pytest.mark.parametrize(
    ("task", "least", "counted"),
    [
        ("sst5", 1, "train dev test"),
        ("imdb", 5, "train test"),
        ("snli", 2, "train dev test hard"),
        ("mnli", 4, "train matched mismatched conjnli"),
        ("qqp", 6, "train dev test paws-qqp paws-wiki"),
    ],
)
def test_words_are_counted_as_the_paper_counted_them(task: str, least: int, counted: str) -> None:
    assert find_task(task).words == CountRule(
        least, tuple(counted.split()), 50_000, "train-sentences" if task == "sst5" else None
    )


def small_words(learnt: int = 2) -> Words:
    tokens = ("film", "dull", "man", *(f"learnt{i}" for i in range(learnt)))
    return Words(Vocabulary(tokens), torch.arange(12.0).reshape(3, 4).half() + 1, "small")


def test_pretrained_vectors_stay_and_unknown_and_frequent_words_learn() -> None:
    embedding = WordEmbedding(small_words().vectors, 2)
    ids = torch.tensor([[3, 5, UNK, 6, 7, SEP, PAD]])
    x = embedding(ids)
    assert x.dtype == torch.float32
    assert torch.equal(x[0, :2], torch.tensor([[1.0, 2, 3, 4], [9, 10, 11, 12]]))
    assert torch.equal(x[0, 2:5], embedding.learnt.weight)
    assert not x[0, 5:].any()
    x.sum().backward()
    assert torch.equal(embedding.learnt.weight.grad, torch.ones(3, 4))
    assert [name for name, _ in embedding.named_parameters()] == ["learnt.weight"]


def test_an_embedding_is_made_for_the_words_there_are() -> None:
    ids = torch.tensor([[3, UNK, PAD]])
    plain = create_embedding(Words(Vocabulary(("a",))), 7)
    assert isinstance(plain, TrainableEmbedding)
    assert plain(ids).shape == (1, 3, 7)
    assert create_embedding(small_words(), 7)(ids).shape == (1, 3, 4)
    for words in (small_words(0), Words(Vocabulary(("a",)))):
        projected = create_embedding(words, 7, projected_to=5, dropout=0.5).eval()
        assert isinstance(projected, ProjectedEmbedding)
        x = projected(ids)
        assert x.shape == (1, 3, 5)
        assert not x[0, 2].any()
        assert projected.inner.dropout.p == 0
        assert projected.dropout.p == 0.5


def test_a_config_that_does_not_fit_its_vocabulary_is_refused() -> None:
    vocabulary = small_words().vocabulary
    kept = saved_words(vocabulary, small_words().describe_vectors())
    assert kept.vectors is not None
    assert (kept.vectors.shape, kept.vectors.dtype) == ((3, 4), torch.float16)
    sound = {"words": 3, "width": 4, "dtype": "float16"}
    changes = ({"words": 9}, {"words": -1}, {"words": True}, {"width": 0}, {"dtype": "int8"})
    for wrong in (*(sound | change for change in changes), 5):
        with pytest.raises(BeamtreeError, match=r"^vectors must have words, width and dtype"):
            saved_words(vocabulary, wrong)


def shipped_vector(word: str) -> torch.Tensor:
    file = read_shipped()
    row = file.words.index(word)
    return torch.from_numpy(file.numbers[row] * file.scales[row])


def test_with_the_vectors_of_the_package_every_word_it_has_is_known() -> None:
    seen = SEEN + Counter({"zqzqz": 6, "qqzzq": 4})
    words = choose_words(RULE, seen, COUNTED, SHIPPED_FILE)
    assert words.own.tokens == ("zqzqz",)
    assert words.learnt == 1
    assert len(words.vocabulary.tokens) == 1 + len(read_shipped().words)
    embedding = create_embedding(words, 7)
    ids = torch.tensor([[*words.vocabulary.encode(["photosynthesis", "a", "zqzqz", "qqzzq"]), PAD, SEP]])
    x = embedding(ids)[0]
    assert torch.equal(x[0], shipped_vector("photosynthesis"))
    assert torch.equal(x[1], shipped_vector("a"))
    assert torch.equal(x[2:4], embedding.learnt.weight[[1, 0]])
    assert not x[4:].any()
    assert set(embedding.state_dict()) == {"table", "learnt.weight"}
    assert sum(tensor.nbytes for tensor in embedding.state_dict().values()) < 5_000


def test_words_seen_in_training_may_be_tuned_and_all_vectors_scaled() -> None:
    use = VectorUse(tuned=True, unit=True, learn_missing=2)
    words = choose_words(RULE, SEEN + Counter({"zqzqz": 2, "qqzzq": 1}), COUNTED, SHIPPED_FILE, use)
    assert words.own.tokens == ("film", "a", "i", "rare", "lovely", "zqzqz")
    assert words.starts is not None
    assert words.facts()["tuned"] == 5
    assert "5 seen in training are tuned, 94,995 fixed), 1 frequent words" in words.describe()
    embedding = create_embedding(words, 7)
    ids = torch.tensor([words.vocabulary.encode(["film", "photosynthesis"])])
    tuned, fixed = embedding(ids)[0]
    scale = 1 / read_shipped().deviation()
    torch.testing.assert_close(tuned, scale * shipped_vector("film"))
    torch.testing.assert_close(fixed, scale * shipped_vector("photosynthesis"))
    assert tuned.requires_grad
    (tuned.sum() + fixed.sum()).backward()
    assert embedding.learnt.weight.grad.count_nonzero() == 100  # of `film` alone


def test_words_of_a_file_may_be_tuned_and_keep_their_vector_however_rare(vectors: Path) -> None:
    seen, counted = Counter({"film": 9, "lovely": 1}), Counter({"film": 9, "lovely": 1, "dull": 1})
    assert choose_words(RULE, seen, counted, vectors).vocabulary.tokens == ("film",)
    words = choose_words(RULE, seen, counted, vectors, VectorUse(every=True, tuned=True))
    assert words.vocabulary.tokens == ("dull", "film", "lovely")
    assert words.vectors is not None
    assert words.starts is not None
    assert (len(words.vectors), len(words.starts), words.learnt) == (1, 2, 2)
    embedding = create_embedding(words, 7)
    x = embedding(torch.tensor([words.vocabulary.encode(["film", "dull"])]))[0]
    assert torch.equal(x[0], words.starts[0])
    assert torch.equal(x[1], words.vectors[0].float())


def test_a_folder_that_names_the_vectors_of_the_package_gets_the_same_words_again() -> None:
    words = choose_words(RULE, SEEN, COUNTED, SHIPPED_FILE, VectorUse(tuned=True, unit=True))
    told = words.describe_vectors()
    assert told is not None
    assert told["shipped"]["name"] == SHIPPED
    again = saved_words(words.own, told)
    assert again.vocabulary == words.vocabulary
    assert again.learnt == words.learnt
    assert again.shipped is not None
    assert words.shipped is not None
    assert torch.equal(again.shipped.scales, words.shipped.scales)
    shipped = {"name": SHIPPED, "sha256": SHIPPED_SHA256, "factor": 1.0}
    for wrong, reason in (
        ({"sha256": "0" * 64}, "another version of beamtree"),
        ({"name": "other"}, "another version of beamtree"),
        ({"factor": -1.0}, "must have name, sha256 and factor"),
        ({"factor": "1"}, "must have name, sha256 and factor"),
    ):
        with pytest.raises(BeamtreeError, match=reason):
            saved_words(words.own, told | {"shipped": shipped | wrong})
    with pytest.raises(BeamtreeError, match="is 100 wide, not 50"):
        saved_words(words.own, told | {"width": 50})


def test_dropped_words_are_read_as_the_unknown_one_in_training_alone() -> None:
    for words in (small_words(), Words(Vocabulary(("a", "b", "c")))):
        embedding = create_embedding(words, 4, word_dropout=0.5)
        ids = torch.tensor([[3, 4, 5] * 200 + [SEP, PAD]])
        unknown = embedding(torch.tensor([[UNK]]))[0, 0]
        same = (embedding(ids)[0] == unknown).all(-1)
        assert 0.4 < same[:-2].float().mean() < 0.6
        assert not same[-2:].any()
        assert not (embedding.eval()(ids)[0] == unknown).all(-1).any()
