"""A model whose trees another, trained model finds: a second cell reads along them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from on_gpu import needs_gpu
from small_models import small_model
from small_runs import run_in, small_recipe, without_times
from torch import Tensor

from beamtree.classifier.exports import export_program
from beamtree.classifier.inference import merge_equal_trees, set_beam_size
from beamtree.classifier.model import ModelSettings, TreeClassifier, create_model
from beamtree.classifier.model_folder import load_model, save_model
from beamtree.data.batching import Batch
from beamtree.data.own import restore
from beamtree.data.task import Example, find_task
from beamtree.data.vocabulary import Vocabulary
from beamtree.data.words import Words
from beamtree.errors import BeamtreeError
from beamtree.training.evaluate import evaluate

EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7", "[SM 1 2 ]", "[MED 1 2 3 4 5 ]"]


@pytest.fixture
def parser(tmp_path: Path) -> Path:
    save_model(small_model("ebt-grc", seed=3), tmp_path / "parser")
    return tmp_path / "parser"


def settings(parser: Path, encoder: str = "gold-grc", d_model: int = 12, **others: object) -> ModelSettings:
    small = {"embedding_size": 6, "classifier_hidden": 8, "dropout": 0.2}
    return ModelSettings(encoder, d_model=d_model, trees_from=str(parser), **small, **others)


def second(parser: Path) -> TreeClassifier:
    torch.manual_seed(0)
    return create_model(settings(parser), find_task("listops"))


def batch_of(model: TreeClassifier, texts: list[str]) -> Batch:
    examples = [Example((tuple(text.split()),), "3") for text in texts]
    return model.encode(examples).collate(np.arange(len(texts)))


def test_it_reads_along_all_trees_of_the_trained_model_weighted_as_there(parser: Path) -> None:
    model, first = second(parser).eval(), load_model(parser)
    batch = batch_of(model, EXPRESSIONS)
    logits, found = model(batch.ids, batch.key_padding_mask, need_trees=True)
    for b, (text, prediction) in enumerate(
        zip(EXPRESSIONS, first.predict(EXPRESSIONS, need_trees=True), strict=True)
    ):
        (trees,) = prediction.trees
        assert torch.equal(found.merges[b, :, : len(text.split()) - 1], trees.merges[0])
        x, expected = model.embedding(batch_of(model, [text]).ids), 0
        for merges, weight in zip(trees.merges[0], trees.weights[0], strict=True):
            if weight > 0:
                expected = expected + weight * model.encoder(x, merges=merges.unsqueeze(0))
        torch.testing.assert_close(logits[b : b + 1], model.head(expected))
    assert int((~found.alive).sum()) > 0  # short expressions have fewer trees than beams


def test_more_beams_are_more_trees(parser: Path) -> None:
    model = second(parser).eval()
    set_beam_size(model, 1)
    assert model.predict(EXPRESSIONS, need_trees=True)[0].trees[0].merges.shape[1] == 1
    merge_equal_trees(model)
    set_beam_size(model, 20)
    (trees,) = model.predict(["[MAX 2 9 4 ]"], need_trees=True)[0].trees
    shapes = [frozenset(map(tuple, spans)) for spans in trees.spans[0][trees.alive[0]].tolist()]
    assert len(set(shapes)) == len(shapes)


def test_training_changes_neither_the_weights_nor_the_trees_of_the_trained_model(parser: Path) -> None:
    model = second(parser).train()
    assert not model.parser.training
    assert not model.parser.encoder.training
    before = {name: weight.clone() for name, weight in model.parser.state_dict().items()}
    batch = batch_of(model, EXPRESSIONS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    seen: list[Tensor] = []
    model.encoder.register_forward_pre_hook(
        lambda _, args, options: seen.append(options["merges"]), with_kwargs=True
    )
    for _ in range(3):
        model(batch.ids, batch.key_padding_mask).square().sum().backward()
        optimizer.step()
    trees = load_model(parser)(batch.ids, batch.key_padding_mask, need_trees=True)[1]
    assert all(torch.equal(merges, trees.merges[:, 0]) for merges in seen)  # the best tree alone
    after = model.parser.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    assert all(
        weight.grad is not None for name, weight in model.named_parameters() if not name.startswith("parser.")
    )


def test_its_folder_needs_the_trained_models_no_more(parser: Path, tmp_path: Path) -> None:
    model = second(parser).eval()
    save_model(model, tmp_path / "saved")
    shutil.rmtree(parser)
    loaded = load_model(tmp_path / "saved")
    assert loaded.title == "gold-grc on found trees"
    assert loaded.settings.trees_from == "parser"
    assert str(tmp_path) not in (tmp_path / "saved" / "config.json").read_text()  # where it was is private
    assert not loaded.needs_merges
    assert loaded.predict(EXPRESSIONS) == model.predict(EXPRESSIONS)
    assert not any(weight.requires_grad for weight in loaded.parser.parameters())


def test_nodes_are_read_and_trees_compared_with_gold_ones(parser: Path) -> None:
    model = second(parser).eval()
    (prediction,) = model.predict(EXPRESSIONS[:1], need_trees=True)
    for beam in (0, 1):
        (nodes,) = model.read_nodes(EXPRESSIONS[0], beam)
        spans = prediction.trees[0].spans[0, beam].tolist()
        assert [(node.start, node.end) for node in nodes] == [tuple(span) for span in spans]
    set_beam_size(model, 1)  # its root then is the sentence vector
    (nodes,), (prediction,) = model.read_nodes(EXPRESSIONS[0]), model.predict(EXPRESSIONS[:1])
    assert nodes[-1].label == prediction.label
    assert nodes[-1].probability == pytest.approx(prediction.probability, abs=1e-6)
    examples = [Example((tuple(text.split()),), "3") for text in EXPRESSIONS]
    of_parser = evaluate(load_model(parser), "some", examples).total.trees
    assert evaluate(model, "some", examples).total.trees.f1 == of_parser.f1


def test_trees_from_a_model_that_cannot_find_them_are_refused(parser: Path, tmp_path: Path) -> None:
    listops = find_task("listops")
    with pytest.raises(BeamtreeError, match=r"'ebt-grc' finds its own: leave it out"):
        create_model(settings(parser, "ebt-grc"), listops)
    save_model(small_model("ebt-grc", task="logic"), tmp_path / "logic")
    with pytest.raises(BeamtreeError, match="another task"):
        create_model(settings(tmp_path / "logic"), listops)
    save_model(small_model("gold-grc"), tmp_path / "gold")
    with pytest.raises(BeamtreeError, match=r"finds a tree over all tokens .* 'gold-grc'"):
        create_model(settings(tmp_path / "gold"), listops)
    with pytest.raises(BeamtreeError, match="there is no model"):
        create_model(settings(tmp_path / "nowhere"), listops)
    with pytest.raises(BeamtreeError, match=r"model\.readout must be root"):
        create_model(replace(settings(parser), readout="pooled"), listops)
    with pytest.raises(BeamtreeError, match="another model finds its trees"):
        export_program(second(parser))


def test_of_own_data_labels_and_words_must_be_the_same(tmp_path: Path) -> None:
    columns = {"label": "label", "texts": ["text"], "tokenizer": "blanks"}
    task, words = restore(["good", "bad"], columns), Words(Vocabulary(("a", "b", "c")))
    save_model(small_model("ebt-grc", task, words=words), tmp_path / "own")
    model = create_model(settings(tmp_path / "own"), task, words).eval()
    assert model.predict(["a b c"], need_trees=True)[0].trees[0].merges.shape[-1] == 2
    with pytest.raises(BeamtreeError, match="other labels or words"):
        create_model(settings(tmp_path / "own"), restore(["good", "bad", "so-so"], columns), words)
    with pytest.raises(BeamtreeError, match="other labels or words"):
        create_model(settings(tmp_path / "own"), task, Words(Vocabulary(("a", "c", "b"))))


@pytest.mark.parametrize("wrong", [None, "text", {"d_model": 0}, {"encoder": "gold-grc"}])
def test_a_config_with_another_parser_is_refused(parser: Path, tmp_path: Path, wrong: object) -> None:
    save_model(second(parser), tmp_path / "saved")
    path = tmp_path / "saved" / "config.json"
    config = json.loads(path.read_text())
    if wrong is None:
        del config["parser"]
    elif isinstance(wrong, dict):
        config["parser"].update(wrong)
    else:
        config["parser"] = wrong
    path.write_text(json.dumps(config))
    with pytest.raises(BeamtreeError, match=r"parser|finds a tree"):
        load_model(tmp_path / "saved")


def test_a_run_along_found_trees_resumes_as_if_it_had_never_stopped(parser: Path, tmp_path: Path) -> None:
    recipe = small_recipe(model={"encoder": "gold-grc", "trees_from": str(parser), "dropout": 0.2})
    whole = run_in(tmp_path / "whole", recipe)
    run_in(tmp_path / "parts", recipe, steps=7)
    parts = run_in(tmp_path / "parts", recipe)
    assert without_times(parts.history) == without_times(whole.history)
    trained, other = (load_model(tmp_path / name).state_dict() for name in ("parts", "whole"))
    assert trained.keys() == other.keys()
    assert all(torch.equal(weight, other[name]) for name, weight in trained.items())
    for name, weight in load_model(parser).state_dict().items():
        assert torch.equal(trained[f"parser.{name}"], weight)


@pytest.mark.gpu
@needs_gpu
def test_on_a_gpu_it_trains_and_predicts_as_on_a_cpu(parser: Path) -> None:
    model = second(parser).eval()
    expected = model.predict(EXPRESSIONS, need_trees=True)
    for ours, theirs in zip(model.cuda().predict(EXPRESSIONS, need_trees=True), expected, strict=True):
        assert ours.probability == pytest.approx(theirs.probability, abs=1e-4)
        assert torch.equal(ours.trees[0].merges.cpu(), theirs.trees[0].merges)
    batch = batch_of(model, EXPRESSIONS).to(torch.device("cuda"))
    model.train()(batch.ids, batch.key_padding_mask).square().sum().backward()
    assert all(w.grad is not None for name, w in model.named_parameters() if not name.startswith("parser."))
