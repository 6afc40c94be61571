"""The demonstration: it trains or takes the shipped model, shows a table and draws trees."""

from pathlib import Path

import pytest
from small_runs import small_recipe

from beamtree import demo
from beamtree.data.task import find_task
from beamtree.model import create_model, save_model

RECIPE = small_recipe(
    task={"sampled": {"max_length": 16}}, model={"encoder": "ebt-grc"}, training={"max_epochs": 1}
)


def test_without_a_shipped_model_one_is_trained_evaluated_and_its_trees_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "PRETRAINED", tmp_path / "nothing")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.to_toml(), encoding="utf-8")
    demo.run_demo(str(path), examples=12)
    said = capsys.readouterr().out
    assert "epoch 1/1" in said
    assert "accuracy %" in said
    assert "10-20" in said
    assert "[MAX" in said
    assert said.count("$ beamtree ") == 3


def test_shipped_models_are_used_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "PRETRAINED", tmp_path)
    monkeypatch.setattr("beamtree.model.PRETRAINED", tmp_path)
    for task, name in (("listops", demo.SHIPPED), ("logic", demo.LOGIC)):
        save_model(create_model(RECIPE.model, find_task(task)), tmp_path / name)
    monkeypatch.setattr(demo, "PAIRS", 3000)
    demo.run_demo(examples=3)
    said = capsys.readouterr().out
    assert "beamtree train" not in said
    assert "200-300" in said
    assert "[MED" in said
    assert "test10" in said
    assert "sentence 2" in said
