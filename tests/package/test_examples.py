"""Every example runs, with few steps, and what it labels is right."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.data.listops.draws import sample_expressions
from beamtree.data.listops.language import evaluate, tag_tokens

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SMALL = {"label_listops": ["--expressions", "40", "--tested", "10", "--seeds", "2"]}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_reports(path, capsys):
    score = load(path).main(["--steps", "2", "--d-model", "8", *SMALL.get(path.stem, [])])
    assert -1.0 <= score <= 1.0
    printed = capsys.readouterr().out
    assert "step 0: loss" in printed
    assert "%" in printed


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_a_page_with_its_command(path):
    page = (ROOT / "docs" / "examples" / f"{path.stem}.md").read_text(encoding="utf-8")
    command = re.search(r"python examples/.*", path.read_text(encoding="utf-8"))[0]
    assert command in page


def test_the_stack_without_trees_is_no_smaller_than_the_hybrid():
    example = load(ROOT / "examples" / "label_listops.py")
    for d in (8, 64, 128):
        size = example.Labeller(example.STACKS["hybrid"], d, 4 * d).size()
        width = example.widen(example.STACKS["plain"], d, size)
        plain = example.Labeller(example.STACKS["plain"], d, width).size()
        assert size <= plain <= 1.15 * size


def test_tokens_are_tagged_with_their_innermost_list():
    tokens = ["[MAX", "2", "[MIN", "4", "7", "]", "[SM", "9", "[MED", "1", "5", "]", "]", "]"]
    values, depths = tag_tokens(tokens)
    assert values == [4, 4, 4, 4, 4, 4, 2, 2, 3, 3, 3, 3, 2, 4]
    assert depths == [1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 2, 1]
    assert tag_tokens(["7"]) == ([7], [0])


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_tags_are_what_evaluating_each_list_alone_gives(seed):
    for example in sample_expressions(3, seed=seed, max_length=40):
        tokens = example.sentences[0]
        values, depths = tag_tokens(tokens)
        assert values[0] == int(example.label)
        for start, token in enumerate(tokens):
            if not token.startswith("["):
                continue
            end = next(
                i for i in range(start + 1, len(tokens)) if depths[i] == depths[start] and tokens[i] == "]"
            )
            value = evaluate(tokens[start : end + 1])
            own = [i for i in range(start, end + 1) if depths[i] == depths[start]]
            assert {values[i] for i in own} == {value}


def test_an_example_model_ignores_padding():
    torch.manual_seed(0)
    example = load(ROOT / "examples" / "tree_after_ssm.py")
    model = example.FormulaReader(14, 8).double().eval()
    ids = torch.tensor([[3, 5, 6, 4, 0, 0]])
    torch.testing.assert_close(model(ids), model(ids[:, :4]))
