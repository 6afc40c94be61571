"""No network at run time: with sockets forbidden, everything that users call still works."""

import socket
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from hugging_face import save_bert
from small_runs import SMALL

from beamtree import load_model
from beamtree.data.hugging_face import find_encoder
from beamtree.files.settings import from_table
from beamtree.training.recipe import Recipe


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"a socket was asked for: {arguments} {options}")

    for name in ("socket", "create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)


def test_the_guard_would_notice() -> None:
    import urllib.request

    with pytest.raises(AssertionError, match="a socket was asked for"):
        urllib.request.urlopen("http://example.org")


def test_loading_and_predicting_need_no_network() -> None:
    assert load_model("listops-ebt-grc").predict(["[MAX 2 9 ]"])[0].label == "9"


def test_a_hugging_face_encoder_in_a_folder_needs_no_network(tmp_path: Path) -> None:
    assert find_encoder(str(save_bert(tmp_path))).network is not None


def test_drawing_training_evaluating_parsing_and_reporting_need_no_network(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(from_table(Recipe, SMALL, source="test").to_toml())
    run, data = tmp_path / "run", tmp_path / "test.tsv"
    data.write_text("9\t[MAX 2 9 ]\n3\t[SM 1 2 ]\n")
    call("data", "logic", "--pairs", 2500, "--out", tmp_path / "data")
    call("train", recipe, "--out", run, "--set", "training.max_epochs=1")
    call("eval", run, "--data", data, "--save")
    assert "MAX" in call("parse", run, "[MAX 2 9 ]").stdout
    call("report", run, "--out", tmp_path)
