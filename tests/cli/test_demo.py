"""The demo evaluates the shipped models, shows tables and draws trees."""

import runpy
import sys
from pathlib import Path

import pytest
from small_models import small_model

from beamtree.classifier.model_folder import save_model
from beamtree.cli import demo


def test_both_shipped_models_are_evaluated_and_their_trees_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("beamtree.classifier.model_folder.PRETRAINED", tmp_path)
    for task, name in (("listops", demo.SHIPPED), ("logic", demo.LOGIC)):
        save_model(small_model(task=task), tmp_path / name)
    monkeypatch.setattr(demo, "PAIRS", 3000)
    demo.run_demo(examples=3)
    said = capsys.readouterr().out
    assert said.count("$ beamtree ") == 4
    assert "accuracy %" in said
    assert "200-300" in said
    assert "[MED" in said
    assert "test10" in said
    assert "sentence 2" in said
    assert "F1 and exact" in said


def test_python_m_beamtree_demo_runs_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "beamtree.demo", raising=False)  # as in a fresh process
    assert runpy.run_module("beamtree.demo")["run_demo"].__doc__ == demo.run_demo.__doc__
