"""The data of a recipe: drawn on the fly as it says, or read from files."""

from pathlib import Path

import pytest

from beamtree.data.formal import nesting
from beamtree.errors import BeamtreeError
from beamtree.training.examples import load_examples
from beamtree.training.recipe import load_recipe


def test_the_quick_recipe_has_short_expressions_half_of_them_deep_and_none_in_both_sets() -> None:
    settings = load_recipe("listops-quick", ["task.sampled.train=401", "task.sampled.dev=100"]).task
    task, train, dev = load_examples(settings)
    assert task.name == "listops"
    assert (len(train), len(dev)) == (401, 100)
    for examples in (train, dev):
        lengths = [len(example.sentences[0]) for example in examples]
        assert min(lengths) >= 4
        assert 30 < max(lengths) <= 50
        deep = sum(nesting(example.sentences[0]) >= 3 for example in examples)
        assert deep == (len(examples) + 1) // 2 or deep == len(examples) // 2
    assert len({example.sentences for example in train + dev}) == 501


def test_a_draw_is_the_same_from_run_to_run_and_another_with_another_seed() -> None:
    def draw(seed: int) -> object:
        changes = ["task.sampled.train=20", "task.sampled.dev=5", f"task.sampled.seed={seed}"]
        return load_examples(load_recipe("listops-quick", changes).task)[1:]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_files_are_read_from_the_folder_given(tmp_path: Path) -> None:
    lines = [f"{i % 10}\t[MAX {i % 10} 0 ]\n" for i in range(1010)]
    (tmp_path / "train_d20s.tsv").write_text("".join(lines))
    _, train, dev = load_examples(load_recipe("listops").task, tmp_path)
    assert (len(train), len(dev)) == (10, 1000)
    with pytest.raises(BeamtreeError, match=r"has no split 'tran'; did you mean 'train'"):
        load_examples(load_recipe("listops", ["task.train=tran"]).task, tmp_path)
    (tmp_path / "train_d20s.tsv").unlink()
    with pytest.raises(
        BeamtreeError, match=r"has no train_d20s\.tsv .*; `beamtree data listops --out .*` makes it"
    ):
        load_examples(load_recipe("listops").task, tmp_path)


def test_a_split_without_examples_is_named(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("label\tpremise\thypothesis\n")
    with pytest.raises(BeamtreeError, match=r"the split 'train' of snli in .* has no examples"):
        load_examples(load_recipe("snli").task, tmp_path)
    (tmp_path / "train.tsv").write_text("label\tpremise\thypothesis\nneutral\tA man.\tA dog.\n")
    with pytest.raises(BeamtreeError, match=r"the split 'dev' of snli in .* has no examples"):
        load_examples(load_recipe("snli").task, tmp_path)
