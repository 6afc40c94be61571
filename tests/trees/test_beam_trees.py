"""`BeamTrees` against a recursive oracle, its gradients, its forms and their round trips."""

import json
import random
from typing import Any

import pytest
import torch
from given_trees import draw_merges
from hypothesis import given, settings
from hypothesis import strategies as st

from beamtree.errors import BeamtreeError
from beamtree.nn.encoder import BeamTreeEncoder
from beamtree.trees.beam_trees import BeamTrees


@st.composite
def merge_lists(draw: st.DrawFn, most: int = 12) -> list[int]:
    n = draw(st.integers(1, most))
    return [draw(st.integers(0, n - 2 - step)) for step in range(n - 1)]


def nest(tokens: list[Any], merges: list[int]) -> Any:
    """The tree as nested pairs, by doing each merge on a list."""
    nodes = list(tokens)
    for position in merges:
        nodes[position : position + 2] = [(nodes[position], nodes[position + 1])]
    (root,) = nodes
    return root


def describe(node: Any) -> tuple[int, int, int, str, set[tuple[int, int, int]]]:
    """Start, end, height, brackets and (start, end, height) of all inner nodes, by plain recursion."""
    if not isinstance(node, tuple):
        return node, node + 1, 0, str(node), set()
    start, _, left_height, left_text, left_nodes = describe(node[0])
    _, end, right_height, right_text, right_nodes = describe(node[1])
    height = 1 + max(left_height, right_height)
    nodes = left_nodes | right_nodes | {(start, end, height)}
    return start, end, height, f"({left_text} {right_text})", nodes


def beams_of(batch: list[list[list[int]]], K: int) -> BeamTrees:
    """Trees with given merges for each beam of each sequence; fewer than K beams leave dead ones."""
    lengths = [len(beams[0]) + 1 for beams in batch]
    merges = torch.full((len(batch), K, max(lengths) - 1), -1)
    scores = torch.full((len(batch), K), -torch.inf, dtype=torch.float64)
    for b, beams in enumerate(batch):
        for k, positions in enumerate(beams):
            merges[b, k, : len(positions)] = torch.tensor(positions, dtype=torch.int64)
            scores[b, k] = -0.3 * k
    offset = torch.arange(len(batch), dtype=torch.float64) - 7.5
    return BeamTrees(merges, scores, offset, torch.tensor(lengths))


def mixed_batch(seed: int = 0, K: int = 4) -> BeamTrees:
    rng = random.Random(seed)
    lengths = [1, 2, 3, 9, 4, 13, 2]
    return beams_of([[draw_merges(n, rng) for _ in range(min(K, n))] for n in lengths], K)


@given(merge_lists())
def test_spans_heights_and_brackets_are_those_of_a_recursive_oracle(merges: list[int]) -> None:
    trees = BeamTrees.from_merges([merges])
    *_, text, nodes = describe(nest(list(range(len(merges) + 1)), merges))
    found = torch.cat([trees.spans[0, 0], trees.heights[0, 0, :, None]], -1).tolist()
    assert {tuple(node) for node in found} == nodes
    assert len(found) == len(nodes)
    assert trees.brackets() == [text]


def test_every_beam_of_a_mixed_batch_has_the_structure_of_its_own_tree() -> None:
    trees = mixed_batch()
    for b, length in enumerate(trees.lengths.tolist()):
        for k in range(trees.merges.shape[1]):
            rows = (trees.spans[b, k], trees.heights[b, k], trees.children[b, k])
            if not trees.alive[b, k]:
                assert all((row == -1).all() for row in rows)
                continue
            *_, text, nodes = describe(nest(list(range(length)), trees.merges[b, k, : length - 1].tolist()))
            assert trees.span_sets(b, k) == {(start, end) for start, end, _ in nodes}
            assert trees[b].brackets(beam=k) == [text]
            assert all((row[length - 1 :] == -1).all() for row in rows)


def test_children_point_into_leaves_and_nodes_laid_one_after_the_other() -> None:
    trees = mixed_batch()
    n = trees.merges.shape[-1] + 1
    leaves = torch.stack([torch.arange(n), torch.arange(n) + 1], -1)
    for b, length in enumerate(trees.lengths.tolist()):
        rows = torch.cat([leaves, trees.spans[b, 0]])  # a row of spans for each id
        for step in range(length - 1):
            left, right = trees.children[b, 0, step].tolist()
            assert rows[left][1] == rows[right][0]
            assert [rows[left][0], rows[right][1]] == trees.spans[b, 0, step].tolist()
            assert max(left, right) < n + step


def test_the_last_merge_spans_the_whole_sequence() -> None:
    trees = mixed_batch()
    for b, length in enumerate(trees.lengths.tolist()):
        if length > 1:
            assert trees.spans[b, 0, length - 2].tolist() == [0, length]


def test_one_sequence_is_cut_to_its_own_length_and_keeps_its_tree() -> None:
    trees = mixed_batch()
    assert len(trees) == len(list(trees)) == 7
    assert trees[2].merges.shape == (1, 4, 2)
    assert trees[-1].lengths.tolist() == [2]
    assert trees[3].brackets() == trees.brackets()[3:4]
    assert trees[3].spans.tolist() == trees.spans[3:4, :, :8].tolist()
    assert trees[3].children.max() == 9 + 6
    assert trees[1:3].brackets() == trees.brackets()[1:3]
    with pytest.raises(IndexError, match="there is no sequence 7: there are 7"):
        trees[7]
    with pytest.raises(IndexError, match="there is no sequence -8: there are 7"):
        trees.svg(index=-8)


def test_scores_and_weights_carry_the_gradient_and_dead_beams_get_none() -> None:
    relative = torch.tensor([[0.0, -1.0, -torch.inf], [0.0, -torch.inf, -torch.inf]], requires_grad=True)
    merges = torch.tensor([[[0], [0], [-1]], [[0], [-1], [-1]]])
    trees = BeamTrees(merges, relative, torch.tensor([-3.0, -11000.25]).double(), torch.tensor([2, 2]))
    assert trees.alive.tolist() == [[True, True, False], [True, False, False]]
    assert trees.log_scores.tolist() == [[-3.0, -4.0, -torch.inf], [-11000.25, -torch.inf, -torch.inf]]
    assert trees.log_scores.dtype == torch.float32
    wanted = torch.tensor([0.0, -1.0]).softmax(0)
    torch.testing.assert_close(trees.weights, torch.tensor([[*wanted, 0.0], [1.0, 0.0, 0.0]]))
    (trees.weights[:, 0].sum() + trees.log_scores[0, 0]).backward()
    slope = float(wanted[0] * wanted[1])
    assert relative.grad is not None
    torch.testing.assert_close(relative.grad, torch.tensor([[1 + slope, -slope, 0.0], [0.0, 0.0, 0.0]]))


def test_trees_to_keep_hold_no_gradient_and_go_to_a_device_with_their_words() -> None:
    _, trees = BeamTreeEncoder(4)(torch.randn(2, 5, 4), need_trees=True)
    named = trees.named([list("abcde"), list("fghij")])
    kept = named.detach()
    assert trees.log_scores.requires_grad
    assert not kept.log_scores.requires_grad
    assert kept.brackets() == named.brackets()
    assert torch.equal(kept.merges, trees.merges)
    assert torch.equal(kept.log_scores, trees.log_scores)
    moved = named.to("meta")
    parts = (moved.merges, moved.relative_scores, moved.offset, moved.lengths)
    assert {part.device.type for part in parts} == {"meta"}
    assert named.to("cpu").weights.requires_grad


def test_the_weight_of_a_span_is_that_of_the_trees_which_have_it_and_carries_their_gradient() -> None:
    trees = mixed_batch()
    trees.relative_scores.requires_grad_()
    found = trees.span_weights
    assert found.shape == (len(trees), 13, 14)
    expected = torch.zeros_like(found)
    for b in range(len(trees)):
        for k, tree in enumerate(trees.k_best(b)):
            for start, end in trees.span_sets(b, k):
                expected[b, start, end] += tree.weight
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found[3, :, 2].sum(), trees.relative_scores)
    has_it = torch.tensor([any(end == 2 for _, end in trees.span_sets(3, k)) for k in range(4)])
    weights = trees.weights[3].detach()
    torch.testing.assert_close(gradient[3], weights * (has_it.double() - (weights * has_it).sum()))


def test_k_best_lists_living_beams_only_with_their_scores() -> None:
    trees = mixed_batch()
    best = trees.k_best(2)
    assert [tree.merges for tree in best] == trees.merges[2, :3, :2].tolist()
    assert [tree.log_score for tree in best] == pytest.approx(trees.log_scores[2, :3].tolist())
    assert [tree.weight for tree in best] == pytest.approx(trees.weights[2, :3].tolist())
    assert sum(tree.weight for tree in best) == pytest.approx(1)
    assert trees.k_best(0) == [(-7.5, 1.0, [])]


def test_two_orders_of_the_same_tree_have_the_same_spans() -> None:
    trees = BeamTrees.from_merges([[0, 1, 0], [2, 0, 0], [0, 0, 0]])
    assert trees.span_sets(0) == trees.span_sets(1) != trees.span_sets(2)


def test_nltk_reads_labels_and_escaped_brackets() -> None:
    trees = BeamTrees.from_merges([[1, 0], [], [0]])
    tokens = [["(", "a b", "c)"], ["d"], ["", "e"]]
    assert trees.nltk(tokens) == ["(X -LRB- (X a␣b c-RRB-))", "(X d)", "(X ␣ e)"]
    assert trees.nltk(tokens, label="NP")[1] == "(NP d)"
    assert trees.brackets(tokens) == ["(-LRB- (a␣b c-RRB-))", "d", "(␣ e)"]


def test_json_brings_back_the_same_trees() -> None:
    trees = mixed_batch()
    again = BeamTrees.from_json(trees.to_json())
    assert "\n" not in trees.to_json()
    assert trees.to_json(indent=1).startswith('{\n "')
    for name in ("merges", "relative_scores", "offset", "lengths", "log_scores", "weights", "spans"):
        assert getattr(again, name).dtype == getattr(trees, name).dtype
        assert torch.equal(getattr(again, name), getattr(trees, name)), name
    strict = json.loads(trees.to_json(indent=1), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert strict == trees.to_dict()
    one = strict["sequences"][3]["beams"][0]
    assert one["spans"] == trees.spans[3, 0, : len(one["merges"])].tolist()


def test_json_keeps_the_names_of_tokens() -> None:
    trees = mixed_batch()
    words = [[f"w{i}" for i in range(length)] for length in trees.lengths.tolist()]
    again = BeamTrees.from_json(trees.named(words).to_json())
    assert again.brackets() == trees.brackets(words)
    assert "tokens" not in trees.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("width"), "no 'width'"),
        (lambda data: data["sequences"][3]["beams"][1].pop("merges"), "no 'merges'"),
        (lambda data: data["sequences"][3]["beams"][1].update(merges=[0]), "shape"),
        (lambda data: data["sequences"][3]["beams"][1]["merges"].__setitem__(0, 8), "sequence .* at step 0"),
        (lambda data: data.update(dtype="float31"), "float31"),
        (lambda data: data["sequences"][3].update(tokens=["a", "b"]), ""),
        (lambda data: [sequence.update(tokens=7) for sequence in data["sequences"]], ""),
    ],
)
def test_a_changed_file_is_refused_with_the_reason(change: Any, message: str) -> None:
    data = mixed_batch().to_dict()
    change(data)
    with pytest.raises(BeamtreeError, match=f"this is not what BeamTrees.to_dict writes: .*{message}"):
        BeamTrees.from_dict(data)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(BeamtreeError, match=r"not what BeamTrees\.to_json writes: Expecting value"):
        BeamTrees.from_json("((a b) c)")


@given(st.lists(merge_lists(6), min_size=1, max_size=4))
def test_given_merges_come_back_padded_with_score_zero(lists: list[list[int]]) -> None:
    trees = BeamTrees.from_merges(lists)
    assert trees.merges.shape == (len(lists), 1, max(map(len, lists)))
    assert trees.lengths.tolist() == [len(merges) + 1 for merges in lists]
    assert [tree[0].merges for tree in map(trees.k_best, range(len(lists)))] == lists
    assert trees.log_scores.abs().sum() == 0
    again = BeamTrees.from_merges(trees.merges[:, 0], trees.lengths)
    assert again.to_dict() == trees.to_dict()


def test_wrong_merges_are_refused() -> None:
    with pytest.raises(ValueError, match="merges of sequence 0 at step 1 must be a position from 0 to 0"):
        BeamTrees.from_merges([[0, 1]])
    with pytest.raises(
        ValueError, match=r"must be \(B, K, n-1\), \(B, K\), \(B,\) and \(B,\), got \[\(1, 2\)"
    ):
        BeamTrees(torch.zeros(1, 2), torch.zeros(1, 1), torch.zeros(1), torch.ones(1))


def test_tokens_and_beams_that_do_not_fit_are_refused_by_name() -> None:
    trees = mixed_batch()
    tokens = [[f"t{i}" for i in range(length)] for length in trees.lengths.tolist()]
    with pytest.raises(ValueError, match="one list per sequence, 7 in all, got 6"):
        trees.brackets(tokens[1:])
    with pytest.raises(ValueError, match="sequence 2 has 3 tokens, but got names for 4"):
        trees.brackets([*tokens[:2], ["a"] * 4, *tokens[3:]])
    with pytest.raises(ValueError, match="tokens of sequence 0 must be a list of tokens, got the string 'a'"):
        trees.brackets(["a"] * 7)
    with pytest.raises(ValueError, match="there is no beam 2: sequence 1 has 2 living beams, counted from 0"):
        trees.draw(tokens, index=1, beam=2)
    with pytest.raises(ValueError, match="there is no beam -1"):
        trees.span_sets(1, -1)


def test_one_sequence_takes_its_tokens_without_an_outer_list() -> None:
    trees = BeamTrees.from_merges([[1, 0]])
    assert trees.brackets(["a", "b", "c"]) == trees.brackets([["a", "b", "c"]]) == ["(a (b c))"]


def test_a_notebook_shows_the_first_few_short_trees() -> None:
    trees = mixed_batch()
    assert trees._repr_svg_() == trees.svg()
    assert trees._repr_html_().count("<svg") == 3
    assert repr(trees) == "BeamTrees(B=7, K=4, n=13)"
    assert "BeamTrees(B=7" in trees._repr_html_()
    long = BeamTrees.from_merges([[0] * 600])
    assert long._repr_svg_() is None
    assert "<svg" not in long._repr_html_()
    assert "has 601 tokens, too many to draw here: use svg(index=0)." in long._repr_html_()
    assert "and 4 more" in trees._repr_html_()
    assert "more" not in trees[:3]._repr_html_()


def test_named_trees_keep_their_words_wherever_they_are_shown() -> None:
    trees = BeamTrees.from_merges([[1, 0], [0]])
    words = [["a", "<script>alert(1)</script>", "&"], ["x", "y"]]
    named = trees.named(words)
    assert named.brackets() == trees.brackets(words)
    assert named[1].brackets() == named[1:].brackets() == ["(x y)"]
    assert named.brackets([["1", "2", "3"], ["4", "5"]])[1] == "(4 5)"
    assert trees.brackets()[1] == "(0 1)"
    page = named._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    with pytest.raises(ValueError, match="sequence 0 has 3 tokens"):
        trees.named([["a"], ["x", "y"]])


@pytest.mark.parametrize("branching", ["left", "right", "random"])
def test_five_thousand_tokens_meet_no_recursion_limit(branching: str) -> None:
    n = 5000
    merges = {
        "left": [0] * (n - 1),
        "right": list(range(n - 2, -1, -1)),
        "random": draw_merges(n, random.Random(1)),
    }[branching]
    trees = BeamTrees.from_merges([merges])
    text = trees.brackets()[0]
    assert text.count("(") == text.count(")") == n - 1
    highest = int(trees.heights.max())
    assert highest == n - 1 if branching != "random" else 12 < highest < 200
    assert trees.svg().count("<circle") == n - 1
    assert len(trees.draw(width=80).splitlines()) >= n
    assert BeamTrees.from_json(trees.to_json()).merges[0, 0].tolist() == merges
    assert trees.nltk()[0].count("(X ") == n - 1


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_structure_does_not_depend_on_padding(seed: int) -> None:
    trees = mixed_batch(seed)
    for b, length in enumerate(trees.lengths.tolist()):
        alone = trees[b]
        assert torch.equal(alone.spans[0], trees.spans[b, :, : length - 1])
        assert torch.equal(alone.heights[0], trees.heights[b, :, : length - 1])
