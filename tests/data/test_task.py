"""Tasks, and models with them, go from one process to another."""

import copy
import pickle
from dataclasses import replace

import pytest

from beamtree import load_model
from beamtree.cli.demo import SHIPPED
from beamtree.data.own import restore
from beamtree.data.task import TASKS, find_task


@pytest.mark.parametrize("name", TASKS)
def test_a_task_that_arrives_is_the_one_that_was_sent(name: str) -> None:
    task = find_task(name)
    assert pickle.loads(pickle.dumps(task)) is task
    assert copy.deepcopy(task) is task


def test_a_task_on_own_data_keeps_its_labels_and_columns() -> None:
    task = restore(["good", "bad"], {"label": "label", "texts": ["text"], "tokenizer": "words"})
    arrived = pickle.loads(pickle.dumps(task))
    assert (arrived.labels, arrived.own) == (task.labels, task.own)
    assert arrived.tokenize("Not bad.") == task.tokenize("Not bad.")


def test_a_changed_task_is_not_taken_for_the_known_one() -> None:
    changed = replace(find_task("sst5"), labels=("low", "high"))
    assert copy.copy(changed).labels == ("low", "high")


def test_a_model_that_arrives_answers_as_before() -> None:
    model, texts = load_model(SHIPPED), ["[MAX 2 9 [MIN 4 7 ] 0 ]", "[SM 4 5 ]"]
    arrived = pickle.loads(pickle.dumps(model))
    assert [one.label for one in arrived.predict(texts)] == [one.label for one in model.predict(texts)]
