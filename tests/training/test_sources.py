"""The splits that a model is measured on: found in folders and files, and named where they are missing."""

from pathlib import Path

import pytest
from published import brackets

from beamtree.data import listops, logic
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError
from beamtree.files.lines import MissingFileError
from beamtree.training.examples import find_sources


@pytest.fixture(scope="module")
def expressions() -> list[Example]:
    return listops.sample_expressions(3, seed=3, min_length=4, max_length=40)


def write_split(folder: Path, name: str, examples: list[Example]) -> Path:
    path = folder / name
    path.write_text("".join(f"{one.label}\t{brackets(one.sentences[0])}\n" for one in examples))
    return path


def test_splits_come_in_the_order_of_the_papers_table_without_those_for_training(
    tmp_path: Path, expressions: list[Example]
) -> None:
    for name in ("basic_test.tsv", "test_ood_10arg.tsv", "test_d20s.tsv", "test_900_1000.tsv"):
        write_split(tmp_path, name, expressions[:3])
    write_split(tmp_path, "train_d6s.tsv", expressions[:3])
    found = find_sources(listops.TASK, [tmp_path])
    assert [source.name for source in found] == ["near-iid", "900-1000", "10-args", "lra-test"]
    assert list(found[2].read()) == expressions[:3]
    chosen = find_sources(listops.TASK, [tmp_path], ["10-args", "near-iid", "depth-train"])
    assert [source.name for source in chosen] == ["near-iid", "10-args", "depth-train"]


def test_a_folder_of_all_tasks_and_single_files_are_read(tmp_path: Path, expressions: list[Example]) -> None:
    (tmp_path / "listops").mkdir()
    path = write_split(tmp_path / "listops", "test_d20s.tsv", expressions[:2])
    found = find_sources(listops.TASK, [tmp_path, path])
    assert [source.name for source in found] == ["near-iid", "test_d20s.tsv"]
    assert list(found[0].read()) == list(found[1].read()) == expressions[:2]
    namesake = write_split(tmp_path, "test_d20s.tsv", expressions[:3])
    assert [one.name for one in find_sources(listops.TASK, [path, namesake])] == [str(path), str(namesake)]


def test_a_missing_or_unknown_split_is_named(tmp_path: Path, expressions: list[Example]) -> None:
    path = write_split(tmp_path, "test_d20s.tsv", expressions[:2])
    with pytest.raises(BeamtreeError, match="no split 'near-idd'; did you mean 'near-iid'"):
        find_sources(listops.TASK, [tmp_path], ["near-idd"])
    with pytest.raises(MissingFileError, match=r"has no test_ood_10arg\.tsv .* it holds test_d20s\.tsv"):
        find_sources(listops.TASK, [tmp_path], ["10-args"])
    with pytest.raises(BeamtreeError, match=r"--split chooses from a folder, but .* is a file"):
        find_sources(listops.TASK, [path], ["near-iid"])
    with pytest.raises(BeamtreeError, match="holds no split of task 'logic'; wanted dev, test0"):
        find_sources(logic.TASK, [tmp_path])


def test_a_broken_split_is_not_taken_for_a_missing_one(tmp_path: Path, expressions: list[Example]) -> None:
    write_split(tmp_path, "test_d20s.tsv", expressions[:2])
    (tmp_path / "test_200_300.tsv").write_text("7\t8\n")
    with pytest.raises(BeamtreeError, match=r"test_200_300\.tsv, line 1: the label is '7'"):
        find_sources(listops.TASK, [tmp_path])
