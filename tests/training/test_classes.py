"""Figures label by label, weights of labels, and what decides which epoch is best."""

import pytest
import torch
from small_runs import run_in, small_recipe

from beamtree.data.task import Example
from beamtree.nn.heads import class_losses
from beamtree.training.classes import Confusion, balanced_weights, largest_share, log_frequencies
from beamtree.training.run import choose_selection

UNEVEN = Confusion(("neg", "pos"), [[90, 0], [10, 0]])  # always the first
MIXED = Confusion(("a", "b", "c", "never"), [[3, 1, 0, 0], [2, 4, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]])


def test_naming_one_label_is_right_often_and_has_half_the_macro_f1() -> None:
    assert UNEVEN.accuracy == 0.9
    assert UNEVEN.majority == ("neg", 0.9)
    assert UNEVEN.macro_f1 == pytest.approx((2 * 90 / 190) / 2)


def test_precision_recall_and_f1_are_those_of_the_books() -> None:
    a, b, c, never = MIXED.scores
    assert (a.precision, a.recall) == (3 / 5, 3 / 4)
    assert a.f1 == pytest.approx(2 * a.precision * a.recall / (a.precision + a.recall))
    assert (b.examples, b.predicted, c.precision, c.recall) == (6, 6, 1.0, 0.5)
    assert never[1:] == (0, 0, 0.0, 0.0, 0.0)
    assert MIXED.macro_f1 == pytest.approx(
        (a.f1 + b.f1 + c.f1) / 3
    )  # a label that is nowhere counts for nothing
    assert MIXED.mean_recall == pytest.approx((a.recall + b.recall + c.recall) / 3)
    assert MIXED.to_dict()["confusion"][1] == [2, 4, 0, 0]


def test_balanced_weights_give_every_label_the_same_part() -> None:
    labels = [0] * 6 + [1] * 2 + [3] * 1
    weights = balanced_weights(labels, 4)
    assert weights == pytest.approx([0.5, 1.5, 0.0, 3.0])
    assert sum(weights[label] for label in labels) == pytest.approx(len(labels))


@pytest.mark.parametrize("labels", [[0] * 9 + [1], [0] * 6 + [1] * 2 + [2] * 3])
def test_with_frequencies_added_logits_that_favour_no_label_fit_uneven_rows_best(labels: list[int]) -> None:
    classes = max(labels) + 1
    offsets = torch.tensor(log_frequencies(labels, classes))
    offsets = offsets.diff() if classes == 2 else offsets
    logits = torch.zeros_like(offsets, requires_grad=True)
    class_losses((logits + offsets).expand(len(labels), -1), torch.tensor(labels)).mean().backward()
    assert logits.grad.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("selection", "weights", "common", "chosen"),
    [
        ("auto", "none", 6, "loss"),
        ("auto", "none", 9, "macro_f1"),
        ("auto", "balanced", 9, "loss"),
        ("loss", "balanced", 9, "loss"),
        ("accuracy", "none", 9, "accuracy"),
    ],
)
def test_macro_f1_decides_by_itself_only_where_labels_are_uneven_and_not_made_even(
    selection: str, weights: str, common: int, chosen: str
) -> None:
    rows = [Example((("x",),), "a")] * common + [Example((("x",),), "b")] * (10 - common)
    assert largest_share(rows)[1] == max(common, 10 - common) / 10
    settings = small_recipe(training={"selection": selection, "class_weights": weights}).training
    assert choose_selection(settings, rows).selection == chosen


def test_a_run_is_selected_by_macro_f1_and_learns_otherwise_with_weights(tmp_path) -> None:
    plain = run_in(tmp_path / "plain", small_recipe(training={"selection": "macro_f1"}))
    weights = {"selection": "macro_f1", "class_weights": "balanced"}
    weighted = run_in(tmp_path / "weighted", small_recipe(training=weights))
    best = [record for record in plain.history if record["best"]][-1]
    assert best["dev_macro_f1"] >= max(record["dev_macro_f1"] for record in plain.history) - 1e-4
    assert plain.history[0]["train_loss"] != weighted.history[0]["train_loss"]
    usual = run_in(tmp_path / "usual", small_recipe())
    assert "dev_macro_f1" not in usual.history[0]
    assert usual.history[0]["train_loss"] == plain.history[0]["train_loss"]


def test_balanced_labels_have_the_same_part_in_the_dev_loss(tmp_path) -> None:
    def first_epoch(weights: str) -> dict:
        settings = {"class_weights": weights, "learning_rate": 0.0, "max_epochs": 1, "selection": "loss"}
        return run_in(tmp_path / weights, small_recipe(training=settings)).history[0]

    plain, balanced = first_epoch("none"), first_epoch("balanced")
    assert plain["dev_accuracy"] == balanced["dev_accuracy"]  # neither has learnt
    assert plain["dev_loss"] != balanced["dev_loss"]
