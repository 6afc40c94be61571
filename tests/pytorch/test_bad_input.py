"""What the encoder cannot take is refused with a message that names the argument and what is wanted."""

import copy
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import beamtree
from beamtree import BeamTreeEncoder
from beamtree.pytorch.checks import looks_at_values

D = 4
B, N = 2, 5


@pytest.fixture(params=[False, True], ids=["eval", "training"])
def encoder(request: pytest.FixtureRequest) -> BeamTreeEncoder:
    torch.manual_seed(0)
    return BeamTreeEncoder(D).train(request.param)


def tokens() -> Tensor:
    return torch.randn(B, N, D)


def with_value(value: float, b: int, i: int) -> Tensor:
    x = tokens()
    x[b, i, 1] = value
    return x


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1.0] * D], r"x must be a tensor of shape \(B, n, 4\), got list"),
        (torch.randn(N, D), r"x must have shape \(B, n, 4\), got \(5, 4\)"),
        (torch.ones(2, N, dtype=torch.long), "got torch.int64; embed token ids first"),
        (torch.randn(1, B, N, D), r"x must have shape \(B, n, 4\), got \(1, 2, 5, 4\)"),
        (torch.randn(B, N, 3), r"x must have shape \(B, n, 4\), got \(2, 5, 3\)"),
        (torch.randn(B, 0, D), r"x holds no token: .* got shape \(2, 0, 4\)"),
        (torch.zeros(B, N, D).long(), r"x must be floating point \(torch.float32\), got torch.int64; embed"),
        (torch.zeros(B, N, D, dtype=torch.bool), r"x must be floating point .*, got torch.bool"),
        (torch.zeros(B, N, D, dtype=torch.complex64), r"x must be floating point .*, got torch.complex64"),
        (
            torch.randn(B, N, D).double(),
            r"x must have the parameters' dtype torch.float32, got torch.float64",
        ),
        (torch.randn(B, N, D).half(), r"x must have the parameters' dtype torch.float32, got torch.float16"),
        (torch.randn(B, N, D, device="meta"), r"x is on meta, the parameters are on cpu: move one of them"),
        (torch.randn(B, N, D).to_sparse(), r"x must be a dense tensor with a key_padding_mask, got layout"),
        (
            torch.nested.nested_tensor([torch.randn(N, D), torch.randn(2, D)]),
            r"x must be a dense tensor with a key_padding_mask, got a nested tensor",
        ),
        (with_value(math.nan, 1, 3), r"x is not finite at sequence 1, token 3"),
        (with_value(math.inf, 0, 4), r"x is not finite at sequence 0, token 4"),
        (with_value(-math.inf, 0, 0), r"x is not finite at sequence 0, token 0"),
    ],
)
def test_wrong_tokens_are_refused(encoder: BeamTreeEncoder, x: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(x)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[False] * N] * B, r"key_padding_mask must be a bool tensor, True at padding, got list"),
        (torch.zeros(B, N), r"key_padding_mask must be a bool tensor, True at padding, got torch.float32"),
        (
            torch.zeros(B, N).long(),
            r"key_padding_mask must be a bool tensor, .* got torch.int64; for an attention",
        ),
        (torch.zeros(B, N - 1, dtype=torch.bool), r"shape \(B, n\) = \(2, 5\), got \(2, 4\)"),
        (torch.zeros(1, N, dtype=torch.bool), r"shape \(B, n\) = \(2, 5\), got \(1, 5\)"),
        (torch.zeros(N, dtype=torch.bool), r"shape \(B, n\) = \(2, 5\), got \(5,\)"),
        (torch.zeros(B, N, dtype=torch.bool, device="meta"), r"key_padding_mask is on meta, x is on cpu"),
        (
            torch.tensor([[False] * N, [False, True, False, True, True]]),
            r"key_padding_mask of sequence 1 has a real token after padding: pad on the right only",
        ),
        (
            torch.tensor([[True] + [False] * 4, [False] * N]),
            r"key_padding_mask of sequence 0 has a real token after padding: .*, True means padding",
        ),
        (
            torch.tensor([[False] * N, [True] * N]),
            r"key_padding_mask leaves sequence 1 empty: each needs at least one token; True means padding",
        ),
    ],
)
def test_wrong_masks_are_refused(encoder: BeamTreeEncoder, mask: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(tokens(), key_padding_mask=mask)


def test_what_is_not_finite_is_refused_at_real_tokens_and_allowed_at_padding(
    encoder: BeamTreeEncoder,
) -> None:
    is_padding = torch.tensor([[False] * 5, [False, False, True, True, True]])
    assert encoder(with_value(math.nan, 1, 2), key_padding_mask=is_padding).isfinite().all()
    with pytest.raises(ValueError, match="x is not finite at sequence 1, token 1"):
        encoder(with_value(math.nan, 1, 1), key_padding_mask=is_padding)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"merges": [[0] * 4] * B}, r"merges must be an int64 tensor of shape \(B, n-1\), got list"),
        ({"merges": torch.zeros(B, 4)}, r"merges must be an int64 tensor .*, got torch.float32"),
        ({"merges": torch.zeros(B, 4).int()}, r"merges must be an int64 tensor .*, got torch.int32"),
        ({"merges": torch.zeros(B, 5).long()}, r"merges must have shape .* B = 2, n = 5, got \(2, 5\)"),
        ({"merges": torch.zeros(B, 1, 4).long()}, r"merges must have shape .*, got \(2, 1, 4\)"),
        ({"merges": torch.zeros(B, 4, device="meta").long()}, r"merges is on meta, the input is on cpu"),
        ({"merges": torch.tensor([[0] * 4, [3, 3, 0, 0]])}, r"sequence 1 at step 1 must be .* 0 to 2"),
        ({"merges": torch.tensor([[0, -1, 0, 0], [0] * 4])}, r"sequence 0 at step 1 must be .* got -1"),
        ({"pinned_spans": [[(0, 3), (2, 4)], []]}, r"sequence 0: \(0, 3\) and \(2, 4\) cross; no tree"),
        ({"pinned_spans": [[], [(3, 6)]]}, r"sequence 1: \(3, 6\) must satisfy 0 <= start < end <= 5"),
        ({"pinned_spans": [[(1, 2)]]}, r"one list of spans for each of 2 sequences, got 1"),
        ({"pinned_spans": [[(1, 2.5)], []]}, r"sequence 0 must be pairs \(start, end\) of int"),
        ({"pinned_spans": torch.zeros(B, 1, 2)}, r"pinned_spans must be int64, got torch.float32"),
        ({"pinned_spans": torch.zeros(B, 2).long()}, r"pinned_spans must have shape \(B, P, 2\)"),
        (
            {"merges": torch.zeros(B, 4).long(), "pinned_spans": [[], []]},
            r"give merges or pinned_spans, not both: a given tree leaves nothing to pin",
        ),
    ],
)
def test_wrong_trees_are_refused(encoder: BeamTreeEncoder, given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(tokens(), **given)


def test_a_given_tree_must_end_where_its_sequence_ends(encoder: BeamTreeEncoder) -> None:
    is_padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    with pytest.raises(ValueError, match=r"sequence 1 at step 2 must be -1 \(its 3 tokens are one tree"):
        encoder(tokens(), is_padding, merges=torch.zeros(B, 4).long())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size must be a whole number of at least 1, got 0"),
        ({"beam_size": 2.5}, "beam_size must be a whole number of at least 1, got 2.5"),
        ({"d_model": 0}, "d_model must be a whole number of at least 1, got 0"),
        ({"input_size": -3}, "input_size must be a whole number of at least 1, got -3"),
        ({"slice_size": 0}, "slice_size must be at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"dropout": -0.1}, r"dropout must lie in \[0, 1\), got -0.1"),
        ({"dropout": 0.1, "cell": torch.nn.Identity()}, "dropout belongs to the built-in cell"),
        ({"scorer_hidden": 8, "scorer": torch.nn.Identity()}, "scorer_hidden belongs to the built-in scorer"),
        ({"slice_size": 8, "scorer": torch.nn.Identity()}, "slice_size belongs to the built-in scorer"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BeamTreeEncoder(**{"d_model": D, **options})


@pytest.mark.parametrize("name", ["ebt-grc", "bt-grc"])
def test_options_of_the_search_are_checked_when_they_are_set_later_too(name: str) -> None:
    encoder = beamtree.create_encoder(name, D)
    for wrong in (0, -1, 2.5, "3", None):
        with pytest.raises(
            ValueError, match=f"beam_size must be a whole number of at least 1, got {wrong!r}"
        ):
            encoder.beam_size = wrong
    for option in ("stochastic", "merge_equal_trees"):
        with pytest.raises(ValueError, match=f"{option} must be True or False, got 'yes'"):
            setattr(encoder, option, "yes")
    with pytest.raises(ValueError, match="beam_size must be a whole number of at least 1, got 0"):
        beamtree.beam_tree_recursion(
            tokens(), torch.tensor([N] * B), encoder.cell, encoder.scorer, beam_size=0
        )
    encoder.beam_size = 3
    assert copy.deepcopy(encoder)(tokens()).shape == (B, D)
    assert vars(encoder)["beam_size"] == 3


def test_under_autocast_tokens_may_come_in_its_dtype(encoder: BeamTreeEncoder) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert encoder(tokens().bfloat16()).dtype == torch.float32


@pytest.fixture
def _checks_restored() -> Iterator[None]:
    yield
    beamtree.validate(False)


@pytest.mark.usefixtures("_checks_restored")
def test_values_are_read_on_a_gpu_only_after_validate(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tokens()
    assert looks_at_values(x)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    assert not looks_at_values(x)
    beamtree.validate(True)
    assert looks_at_values(x)
    capturing = True
    assert not looks_at_values(x)
    capturing = False
    beamtree.validate(False)
    assert not looks_at_values(x)


def test_values_are_not_read_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not looks_at_values(tokens().to("meta"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not looks_at_values(tokens())


class Sum(torch.nn.Module):
    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> Tensor:
        return (left + right).sum(-1, keepdim=True)


class IsGreater(torch.nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return (left > right).sum(-1)


class Both(torch.nn.Module):
    """As a Tree-LSTM, whose nodes are two vectors."""

    def forward(self, left: Tensor, right: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return left, right


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": Sum()}, r"cell must return a parent for each row, shape \(10, 4\) here, got \(10, 1\)"),
        ({"cell": Both()}, r"cell must return a parent for each row, shape \(10, 4\) here, got tuple"),
        ({"scorer": Sum()}, r"scorer must return a number for each row, shape \(8,\) here, got \(8, 1\)"),
        ({"scorer": IsGreater()}, r"scorer must return floating point, got torch\.int64"),
        ({"scorer_hidden": 0}, "the scorer's hidden size must be at least 1, got 0"),
    ],
)
def test_a_users_part_of_the_wrong_shape_is_refused_by_name(
    options: dict[str, torch.nn.Module], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BeamTreeEncoder(D, **options)(tokens())


@pytest.mark.parametrize("name", ["leaf.linear.weight", "cell.w1.weight", "scorer.out.weight"])
def test_a_diverged_model_gives_nan_and_no_error(encoder: BeamTreeEncoder, name: str) -> None:
    with torch.no_grad():
        dict(encoder.named_parameters())[name][0, 1] = math.nan
    root = encoder(tokens())
    assert root.isnan().all()
    root.sum().backward()


@pytest.mark.parametrize("part", ["cell", "scorer"])
def test_a_cell_or_scorer_that_is_no_module_is_refused(part: str) -> None:
    for wrong in ("grc", torch.nn.Identity):
        with pytest.raises(ValueError, match=f"{part} must be a module of your own or None, got"):
            BeamTreeEncoder(D, **{part: wrong})
