"""The training loop: what a step minimises, what an epoch records, what a run folder holds, when it stops."""

import json
import math
from pathlib import Path

import pytest
import torch
from small_runs import run_in, small_examples, small_recipe, without_times

from beamtree.classifier.model import TreeClassifier, create_model
from beamtree.classifier.model_folder import load_model
from beamtree.data.batching import BucketedBatches
from beamtree.data.task import Example, find_task
from beamtree.data.vocabulary import FIRST_WORD
from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.files.tensors import load_tensors
from beamtree.nn.heads import class_losses
from beamtree.training import fit as fit_module
from beamtree.training.examples import LearningData, load_learning_data
from beamtree.training.ranger import Ranger
from beamtree.training.recipe import Recipe, load_recipe
from beamtree.training.run_folder import RunFolder
from beamtree.training.schedule import Stopping

QUIET = {"input_dropout": 0.0, "dropout": 0.0, "output_dropout": 0.0}


@pytest.mark.parametrize(("clip", "name"), [(0.5, "ranger"), (0.0, "ranger"), (0.5, "adamw")])
def test_training_does_what_a_plain_loop_over_the_same_batches_does(
    tmp_path: Path, clip: float, name: str
) -> None:
    """A clip of 0 sets no limit."""
    training = {"max_epochs": 2, "clip": clip, "weight_decay": 0.3, "optimizer": name}
    recipe = small_recipe(model=QUIET, training=training)
    outcome = run_in(tmp_path, recipe)

    train, _ = small_examples(recipe)
    torch.manual_seed(recipe.training.seed)
    model = create_model(recipe.model, find_task("listops"))
    kind = Ranger if name == "ranger" else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.3)
    batches = BucketedBatches(model.encode(train), batch_size=8, shuffle=True, seed=0)
    for epoch in range(2):
        total = 0.0
        for batch in batches.epoch(epoch):
            losses = class_losses(model(batch.ids, batch.key_padding_mask), batch.labels)
            losses.mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip or torch.inf)
            optimizer.step()
            optimizer.zero_grad()
            total += float(losses.detach().sum())
        assert outcome.history[epoch]["train_loss"] == pytest.approx(total / len(train), rel=1e-6)
    trained = load_model(tmp_path / "last").state_dict()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(trained[name], weight, rtol=0, atol=1e-6)


def test_a_run_counts_words_and_pairs_of_its_training_rows_before_the_first_step(tmp_path: Path) -> None:
    rows = ["label\ttext"] + [f"{i % 2}\t{'not good' if i % 2 else 'good'} film" for i in range(40)]
    (tmp_path / "rows.tsv").write_text("\n".join(rows))
    recipe = load_recipe("own", ["model.d_model=8", "model.options.slice_size=8", "model.word_pairs=64"])
    run = RunFolder(tmp_path / "run")
    run.begin(recipe)
    data = load_learning_data(recipe, tmp_path / "rows.tsv")
    fit_module.fit(recipe, run, data, stopping=Stopping(steps=1))
    weights, _ = load_tensors(run.last / "model.safetensors")
    assert data.words is not None
    number = dict(
        zip(("not", "good", "film"), data.words.vocabulary.encode(("not", "good", "film")), strict=True)
    )
    words = FIRST_WORD + len(data.words.own.tokens)
    owners = weights["word_scores.owner"]
    pairs = {number["not"] * words + number["good"], number["good"] * words + number["film"]}
    assert set(owners[owners >= 0].tolist()) == pairs
    leaning = weights["word_scores.leaning"][:words, 0]
    assert leaning[number["not"]] > 1  # to label 1
    assert leaning[number["film"]] == pytest.approx(0, abs=0.05)


def test_accumulating_micro_batches_gives_the_losses_of_whole_batches(tmp_path: Path) -> None:
    # One step an epoch, so that the order of steps cannot matter.
    whole = small_recipe(model=QUIET, training={"batch_size": 40, "max_epochs": 4})
    parts = small_recipe(model=QUIET, training={"batch_size": 40, "max_epochs": 4, "micro_batch_size": 7})
    first, second = run_in(tmp_path / "whole", whole), run_in(tmp_path / "parts", parts)
    for one, other in zip(first.history, second.history, strict=True):
        assert one["step"] == other["step"]
        for name in ("train_loss", "dev_loss"):
            assert one[name] == pytest.approx(other[name], abs=1e-6)


def test_a_model_learns_a_task_that_is_easy(tmp_path: Path) -> None:
    recipe = small_recipe(training={"max_epochs": 25, "learning_rate": 0.02}, model={**QUIET, "d_model": 16})
    easy = [Example((("[MAX", str(i % 10), str(i % 10), "]"),), str(i % 10)) for i in range(60)]
    run = RunFolder(tmp_path)
    run.begin(recipe)
    outcome = fit_module.fit(recipe, run, LearningData(find_task("listops"), easy, easy[:10]))
    assert outcome.history[-1]["dev_accuracy"] == 1.0


def test_a_run_folder_holds_recipe_metrics_events_models_and_checkpoint(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = small_recipe()
    outcome = run_in(tmp_path, recipe)
    assert outcome.finished
    assert outcome.reason == "all 3 epochs are done"
    run = RunFolder(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "best",
        "checkpoint",
        "last",
        "metrics.jsonl",
        "recipe.toml",
        "tensorboard",
    ]
    assert run.continue_with(None, ()) == recipe
    assert run.read_metrics() == outcome.history
    record = outcome.history[0]
    assert record.keys() == {
        "epoch",
        "step",
        "train_loss",
        "train_accuracy",
        "dev_loss",
        "dev_accuracy",
        "learning_rate",
        "best",
        "tokens_per_second",
        "seconds",
    }
    assert (record["epoch"], record["step"], record["learning_rate"]) == (1, 5, 0.01)
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    logged = [(event.step, event.value) for event in events.Scalars("epoch/dev_loss")]
    assert logged == [(entry["step"], pytest.approx(entry["dev_loss"])) for entry in outcome.history]


def test_best_is_the_model_of_the_best_epoch_and_last_of_the_last(tmp_path: Path) -> None:
    recipe = small_recipe(training={"max_epochs": 6, "learning_rate": 0.3})
    history = run_in(tmp_path, recipe).history
    best = [record for record in history if record["best"]][-1]
    assert best["dev_loss"] == min(record["dev_loss"] for record in history)
    assert best["epoch"] < 6
    _, dev = small_examples(recipe)
    for name, record in (("best", best), ("last", history[-1])):
        loss, accuracy = dev_figures(load_model(tmp_path / name), dev)
        assert loss == pytest.approx(record["dev_loss"], rel=1e-5)
        assert accuracy == pytest.approx(record["dev_accuracy"])


def dev_figures(model: TreeClassifier, dev: list[Example]) -> tuple[float, float]:
    batch = next(iter(BucketedBatches(model.encode(dev), batch_size=len(dev)).epoch(0)))
    with torch.no_grad():
        logits = model(batch.ids, batch.key_padding_mask, batch.gold_merges)
    correct = (logits.argmax(-1) == batch.labels).float().mean()
    return float(class_losses(logits, batch.labels).mean()), float(correct)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run_in(tmp_path / name, small_recipe(training={"seed": seed}))
    a, b, c = (
        (
            without_times(RunFolder(tmp_path / name).read_metrics()),
            (tmp_path / name / "last/model.safetensors"),
        )
        for name in "abc"
    )
    assert a[0] == b[0]
    assert a[1].read_bytes() == b[1].read_bytes()
    assert a[0] != c[0]


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_other_precisions_train_and_stay_close(tmp_path: Path, precision: str) -> None:
    full = run_in(tmp_path / "full", small_recipe(model=QUIET))
    other = run_in(tmp_path / precision, small_recipe(model=QUIET, training={"precision": precision}))
    assert other.history[-1]["dev_loss"] == pytest.approx(full.history[-1]["dev_loss"], rel=0.05)
    assert load_model(tmp_path / precision / "best").head.out.weight.dtype == torch.float32
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("before", [False, True])
def test_a_deterministic_run_leaves_the_process_as_it_was(tmp_path: Path, before: bool) -> None:
    torch.use_deterministic_algorithms(before)
    try:
        assert run_in(tmp_path, small_recipe(training={"deterministic": True, "max_epochs": 1})).finished
        assert torch.are_deterministic_algorithms_enabled() == before
    finally:
        torch.use_deterministic_algorithms(False)


def poison(monkeypatch: pytest.MonkeyPatch, at_call: int) -> None:
    """Make the losses of one forward pass NaN."""
    calls = 0
    real = class_losses

    def poisoned(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        losses = real(logits, labels)
        return losses * math.nan if calls == at_call else losses

    monkeypatch.setattr(fit_module, "class_losses", poisoned)


def test_a_loss_that_is_not_finite_stops_names_the_batch_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = small_recipe()
    run_in(tmp_path, recipe, steps=5)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    assert len(kept) == 3
    poison(monkeypatch, at_call=3)
    with pytest.raises(BeamtreeError) as caught:
        run_in(tmp_path, recipe)
    train, _ = small_examples(recipe)
    model = create_model(recipe.model, find_task("listops"))
    rows = BucketedBatches(model.encode(train), batch_size=8, shuffle=True, seed=0).plan(1)[2][0].tolist()
    assert str(caught.value) == (
        "the loss or its gradient is not finite in epoch 2, step 3 (training examples "
        f"{', '.join(map(str, rows))}; all 8 in {tmp_path / 'failure.json'}): stopped; the last good "
        "checkpoint and best/ are kept; start again with a lower training.learning_rate"
    )
    assert json.loads((tmp_path / "failure.json").read_text()) == {"epoch": 2, "step": 3, "examples": rows}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == kept
    monkeypatch.undo()
    assert run_in(tmp_path, recipe).finished
    assert not (tmp_path / "failure.json").exists()


def test_a_dev_loss_that_is_not_finite_stops_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from beamtree.training import run as run_module

    monkeypatch.setattr(run_module, "class_losses", lambda logits, labels: logits[:, 0] * math.nan)
    with pytest.raises(BeamtreeError, match="the dev loss is not finite after epoch 1: stopped"):
        run_in(tmp_path, small_recipe())
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("accelerate", r"training needs an optional dependency: pip install 'beamtree\[train\]'"),
        ("torch.utils.tensorboard", r"TensorBoard events needs an optional dependency"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, message: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingExtraError, match=message):
        run_in(tmp_path, small_recipe())


def test_early_stopping_ends_a_run(tmp_path: Path) -> None:
    recipe = small_recipe(training={"max_epochs": 50, "learning_rate": 0.0, "patience": 1})
    outcome = run_in(tmp_path, recipe)
    assert outcome.finished
    assert len(outcome.history) == 3
    assert outcome.reason == "the dev score has not risen for 2 epochs"


DECAY = 0.8


def averaging_recipe(averaging: float, **training: object) -> Recipe:
    return small_recipe(
        model={"encoder": "ebt-grc", "options": {"beam_size": 2}},
        training={"averaging": averaging, "patience": 10, **training},
    )


def test_the_model_kept_is_the_running_mean_of_the_weights_after_every_step(tmp_path: Path) -> None:
    mean: dict[str, torch.Tensor] = {}
    plain = averaging_recipe(0.0, max_epochs=1)
    for steps in range(1, 6):  # 40 examples by 8
        run_in(tmp_path / "plain", plain, steps=1)
        for name, weight in load_model(tmp_path / "plain" / "last").state_dict().items():
            mean[name] = weight if steps == 1 else DECAY * mean[name] + (1 - DECAY) * weight
    run_in(tmp_path / "averaged", averaging_recipe(DECAY, max_epochs=1))
    for kept in ("last", "best"):
        for name, weight in load_model(tmp_path / "averaged" / kept).state_dict().items():
            torch.testing.assert_close(weight, mean[name], rtol=0, atol=1e-6)


def test_averaging_does_not_change_the_weights_that_learn(tmp_path: Path) -> None:
    learnt = []
    for averaging in (0.0, DECAY):
        outcome = run_in(tmp_path / str(averaging), averaging_recipe(averaging))
        tensors, _ = load_tensors(tmp_path / str(averaging) / "checkpoint" / "state.safetensors")
        weights = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
        learnt.append((weights, [epoch["train_loss"] for epoch in outcome.history]))
    (weights, losses), (others, other_losses) = learnt
    assert losses == other_losses
    assert all(weights[name].equal(others[name]) for name in weights)


@pytest.mark.parametrize("steps", [1, 7])
def test_a_resumed_run_continues_its_running_mean(tmp_path: Path, steps: int) -> None:
    recipe = averaging_recipe(DECAY)
    run_in(tmp_path / "whole", recipe)
    assert not run_in(tmp_path / "halved", recipe, steps=steps).finished
    assert run_in(tmp_path / "halved", recipe).finished
    wanted, _ = load_tensors(tmp_path / "whole" / "last" / "model.safetensors")
    found, _ = load_tensors(tmp_path / "halved" / "last" / "model.safetensors")
    assert all(found[name].equal(wanted[name]) for name in wanted)
