"""Encoders by name: one of your own is made, trained, kept and loaded as those of the tables are, and models
that are compared have as many parameters as EBT-GRC."""

import json
from pathlib import Path

import pytest
from torch import Tensor, nn
from typer.testing import CliRunner

from beamtree import BeamTreeEncoder, BeamtreeError, create_encoder, load_model, register_encoder
from beamtree.cli import app
from beamtree.zoo import by_name as zoo
from beamtree.zoo.by_name import LARGEST_DIFFERENCE, SIZINGS, count_parameters, equal_sized_options


class DotScorer(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (left * right).sum(-1)


def dot_scored(d_model: int, *, input_size: int | None = None, beam_size: int = 5, dropout: float = 0.0):
    return BeamTreeEncoder(
        d_model, input_size=input_size, beam_size=beam_size, dropout=dropout, scorer=DotScorer()
    )


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "_REGISTERED", {})
    register_encoder("dot-scored", dot_scored)


def test_a_registered_encoder_is_made_by_its_name_with_its_options() -> None:
    encoder = create_encoder("dot-scored", 8, beam_size=3)
    assert (encoder.beam_size, type(encoder.scorer)) == (3, DotScorer)
    assert "dot-scored" in zoo.encoder_names()
    with pytest.raises(BeamtreeError, match="has no option 'slice_size'"):
        create_encoder("dot-scored", 8, slice_size=64)
    with pytest.raises(BeamtreeError, match="did you mean 'dot-scored'"):
        create_encoder("dot-score", 8)


@pytest.mark.parametrize("name", ["ebt-grc", "ebt-gau"])
def test_the_names_of_the_tables_cannot_be_taken(name: str) -> None:
    with pytest.raises(BeamtreeError, match="choose another name"):
        register_encoder(name, dot_scored)


def test_what_cannot_be_called_is_no_encoder() -> None:
    with pytest.raises(BeamtreeError, match=r"make must be a class or function .* got 'x'"):
        register_encoder("quiet", "x")


def test_a_recipe_trains_it_and_its_model_loads_where_it_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"task.sampled.train": 40, "task.sampled.dev": 10, "training.max_epochs": 1, "model.d_model": 8}
    changes = {**small, "model.encoder": "dot-scored", "model.options.beam_size": 2}
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    run = tmp_path / "run"
    done = CliRunner().invoke(app, ["train", "listops-minute", *settings, "--out", str(run)])
    assert done.exit_code == 0, done.output
    model = load_model(run)
    assert isinstance(model.encoder.scorer, DotScorer)
    (prediction,) = model.predict(["[MAX 2 9 ]"], need_trees=True)
    assert len(prediction.trees) == 1
    assert json.loads((run / "best" / "config.json").read_text())["model"]["encoder"] == "dot-scored"

    monkeypatch.setattr(zoo, "_REGISTERED", {})
    with pytest.raises(BeamtreeError, match="there is no encoder 'dot-scored'"):
        load_model(run)


@pytest.mark.parametrize("d_model", [64, 128, 200])
@pytest.mark.parametrize("name", SIZINGS)
def test_every_model_comes_within_a_twentieth_of_the_tree_model(name: str, d_model: int) -> None:
    wanted = count_parameters("ebt-grc", d_model)
    options = equal_sized_options(name, d_model, wanted)
    made = create_encoder(name, d_model, **options)
    assert sum(weight.numel() for weight in made.parameters()) == pytest.approx(
        wanted, rel=LARGEST_DIFFERENCE
    )


@pytest.mark.parametrize("name", SIZINGS)
def test_no_other_size_comes_nearer(name: str) -> None:
    wanted = count_parameters("ebt-grc", 128)
    fixed, solved = SIZINGS[name]
    size = equal_sized_options(name, 128, wanted)[solved]
    step = 1 if solved == "state_size" else 4
    distances = [
        abs(count_parameters(name, 128, **fixed, **{solved: other}) - wanted)
        for other in (size - step, size, size + step)
    ]
    assert min(distances) == distances[1]


def test_the_gold_tree_has_the_same_cell_and_nothing_to_solve_for() -> None:
    assert equal_sized_options("gold-grc", 128, 1000) == {}
    assert count_parameters("gold-grc", 128) == pytest.approx(count_parameters("ebt-grc", 128), rel=0.05)


def test_a_size_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(
        BeamtreeError, match=r"mamba of width 128 cannot have 1,000 parameters: the closest is"
    ):
        equal_sized_options("mamba", 128, 1000)
