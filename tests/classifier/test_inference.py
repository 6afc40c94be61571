"""A model predicts as in evaluation, whatever mode it is in, and keeps its mode.

Also batches, beam size and device.
"""

import threading
from typing import Any

import pytest
import torch
from small_models import small_model
from torch import Tensor, nn

from beamtree.classifier.inference import (
    choose_device,
    evaluating,
    merge_equal_trees,
    run_in_batches,
    set_beam_size,
)
from beamtree.classifier.model import TreeClassifier
from beamtree.data.batching import Batch
from beamtree.data.listops import TASK, sample_expressions
from beamtree.data.task import Example
from beamtree.errors import BeamtreeError
from beamtree.explorer.view import make_view
from beamtree.training.evaluate import evaluate
from beamtree.zoo.by_name import encoder_names, pair_encoder_names

TEXTS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "[SM 1 [MED 2 8 5 ] 3 ]"]
PAIRS = [("( a ( and b ) )", "a"), ("( not c )", "( c ( or d ) )")]
EXPRESSION = [Example((TASK.tokenize("[MAX 1 2 [SM 3 4 ] ]"),), "2")]


def modes(model: nn.Module) -> list[bool]:
    return [part.training for part in model.modules()]


def probabilities(model: TreeClassifier) -> list[dict[str, float]]:
    return [prediction.probabilities for prediction in model.predict(TEXTS)]


def test_threads_that_predict_leave_a_model_in_training_mode() -> None:
    model, before = small_model().train(), {"first": threading.Event(), "second": threading.Event()}
    inside = {name: threading.Event() for name in before}

    def pause(*_: Any) -> None:
        name = threading.current_thread().name
        if name in before:
            inside[name].set()
            assert before[name].wait(20)

    model.embedding.register_forward_hook(pause)
    threads = [
        threading.Thread(target=model.predict, args=(TEXTS,), name=name, daemon=True) for name in before
    ]
    for name, thread in zip(before, threads, strict=True):
        thread.start()
        assert inside[name].wait(20)
    for name, thread in zip(before, threads, strict=True):  # the second ends last, as it began last
        before[name].set()
        thread.join(20)
    assert all(modes(model))


def test_a_model_stays_in_training_mode_during_a_prediction() -> None:
    model, seen = small_model().train(), []
    model.embedding.register_forward_hook(lambda *_: seen.append(modes(model)))
    model.predict(TEXTS)
    make_view(model, TEXTS[:1], name="it")
    assert seen
    assert all(map(all, seen))


@pytest.mark.parametrize("encoder", [*encoder_names(), *pair_encoder_names()])
def test_every_encoder_predicts_the_same_in_training_and_evaluation_mode(encoder: str) -> None:
    pairs = encoder in pair_encoder_names()
    model = small_model(encoder, task="logic" if pairs else "listops")
    expected = model.predict(PAIRS if pairs else TEXTS)
    found = model.train().predict(PAIRS if pairs else TEXTS)
    for one, other in zip(found, expected, strict=True):
        assert one.probabilities == other.probabilities
    assert all(modes(model))


def test_modules_in_different_modes_keep_them() -> None:
    model = small_model().train()
    model.embedding.eval()
    before = modes(model)
    model.predict(TEXTS)
    evaluate(model, "dev", [Example((tuple(text.split()),), "1") for text in TEXTS])
    make_view(model, TEXTS[:1], name="it")
    assert modes(model) == before


def test_a_failed_prediction_does_not_change_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model().train()

    def fail(*_: Any, **__: Any) -> Tensor:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(type(model.encoder), "forward", fail)
    with pytest.raises(BeamtreeError, match="ran out of memory"):
        model.predict(TEXTS)
    assert all(modes(model))


def test_a_model_in_evaluation_mode_needs_no_twin() -> None:
    model = small_model()
    assert evaluating(model) is model
    assert evaluating(model.train()) is not model


def test_a_twin_shares_the_weights_of_its_model() -> None:
    model = small_model().train()
    twin = evaluating(model)
    assert all(one is other for one, other in zip(model.parameters(), twin.parameters(), strict=True))
    before = probabilities(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert probabilities(model) != before


class Odd(nn.Module):
    """Calls its modules from a list, a dict, a bound method and an attribute that nn.Module does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Dropout(0.5) for _ in range(4))
        self.listed = [self.parts[0], None]
        self.named = {"one": self.parts[1]}
        self.method = self.parts[2].forward
        object.__setattr__(self, "hidden", self.parts[3])

    def forward(self, x: Tensor) -> Tensor:
        parts = (*self.listed[:1], *self.named.values(), self.method, self.hidden, *self.parts)
        for part in parts:
            x = part(x)
        return x


def test_modules_called_in_unusual_ways_evaluate_too() -> None:
    model, x = Odd(), torch.ones(100)
    assert torch.equal(evaluating(model)(x), x)
    assert not torch.equal(model(x), x)


def test_a_module_used_twice_has_one_twin() -> None:
    part = nn.Linear(2, 2)
    first, second = evaluating(nn.Sequential(part, part))
    assert first is second


@pytest.mark.parametrize("compiled", ["a part", "a part in its place", "the model in its place"])
def test_compiled_modules_evaluate_too(compiled: str) -> None:
    model = small_model("recurrent-grc")
    expected = probabilities(model)
    if compiled == "a part":
        model.head = torch.compile(model.head, backend="eager")  # type: ignore[assignment]
    elif compiled == "a part in its place":
        model.head.compile(backend="eager")
    else:
        model.compile(backend="eager")
    assert probabilities(model.train()) == expected


def test_a_model_compiled_as_a_whole_evaluates_too() -> None:
    model, x = nn.Sequential(nn.Dropout(0.5)), torch.ones(100)
    assert torch.equal(evaluating(torch.compile(model, backend="eager"))(x), x)  # type: ignore[type-var]


def test_weights_with_a_parametrization_evaluate_too() -> None:
    model = small_model()
    linear = next(part for part in model.head.modules() if isinstance(part, nn.Linear))
    torch.nn.utils.parametrizations.weight_norm(linear)
    expected = probabilities(model)
    assert probabilities(model.train()) == expected


def test_batches_stay_within_their_token_budget() -> None:
    expressions = sample_expressions(40, seed=3, min_length=1, max_length=40)
    model = small_model()
    seen: list[Batch] = []
    for batch, _, _ in run_in_batches(model, model.encode(expressions), batch_tokens=64):
        seen.append(batch)
    assert sorted(row for batch in seen for row in batch.rows.tolist()) == list(range(40))
    assert all(batch.ids.numel() <= 64 or len(batch.rows) == 1 for batch in seen)
    with pytest.raises(BeamtreeError, match="--batch-tokens must be at least 1, got 0"):
        next(run_in_batches(model, model.encode(expressions), batch_tokens=0))


def test_the_beam_size_can_be_changed_if_there_are_beams() -> None:
    model = small_model()
    set_beam_size(model, None)
    assert model.encoder.beam_size == 5
    set_beam_size(model, 2)
    _, _, trees = next(run_in_batches(model, model.encode(EXPRESSION, labelled=False), need_trees=True))
    assert trees is not None
    assert trees.merges.shape[1] == 2
    with pytest.raises(BeamtreeError, match="--beam must be at least 1, got 0"):
        set_beam_size(model, 0)
    with pytest.raises(BeamtreeError, match="the encoder 'transformer' has no beams"):
        set_beam_size(small_model(encoder="transformer"), 3)


def test_equal_trees_can_be_merged_if_the_encoder_supports_it() -> None:
    model = small_model()
    merge_equal_trees(model)
    _, _, trees = next(run_in_batches(model, model.encode(EXPRESSION, labelled=False), need_trees=True))
    assert trees is not None
    found = {frozenset(map(tuple, spans)) for spans in trees.spans[0].tolist()}
    assert len(found) == model.encoder.beam_size
    with pytest.raises(BeamtreeError, match="the encoder 'transformer' cannot merge them"):
        merge_equal_trees(small_model(encoder="transformer"))


def test_the_device_is_chosen_or_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(BeamtreeError, match="cannot use the device 'gpu'"):
        choose_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert choose_device("auto", local_rank=3) == torch.device("cuda", 3)
    assert choose_device("cuda", local_rank=6) == torch.device("cuda", 2)
