"""Folders and the hub: what is saved gives the same outputs when loaded, with and without huggingface_hub."""

import inspect
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import small_model
from torch import nn

from beamtree import BeamTreeContextualizer, BeamTreeEncoder, Ensemble, create_encoder
from beamtree.classifier.model import TreeClassifier
from beamtree.errors import BeamtreeError, MissingExtraError
from beamtree.parts.cell import GatedRecursiveCell
from beamtree.saving.folder import CARD, CONFIG, VOCABULARY, WEIGHTS
from beamtree.saving.pretrained import _FILES

D = 6
EXPRESSIONS = ["[MAX 2 9 [MIN 4 7 ] 0 ]", "7", "[SM 1 2 ]"]
BLOCKS = {
    "encoder": lambda: BeamTreeEncoder(D),
    "other encoder": lambda: BeamTreeEncoder(
        D, input_size=4, beam_size=2, slice_size=3, scorer_hidden=5, dropout=0.1, stochastic=False
    ),
    "united": lambda: BeamTreeEncoder(D, merge_equal_trees=True),
    "unsliced": lambda: BeamTreeEncoder(D, slice_size=None, dtype=torch.float64),
    "contextualizer": lambda: BeamTreeContextualizer(D, dropout=0.2),
    "other contextualizer": lambda: BeamTreeContextualizer(
        D,
        source=BeamTreeEncoder(D, slice_size=2, beam_size=3),
        refinements=1,
        residual=True,
        attend_self=True,
        scalar_bias=True,
        attention_dropout=0.3,
    ),
}


def tokens_for(block: nn.Module) -> torch.Tensor:
    torch.manual_seed(5)
    source = getattr(block, "source", block)
    return torch.randn(3, 7, source.input_size, dtype=source.leaf.linear.weight.dtype)


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_a_block_comes_back_from_its_folder_as_it_was(tmp_path: Path, make: Any) -> None:
    block = make()
    block.save_pretrained(tmp_path / "block")
    found = type(block).from_pretrained(tmp_path / "block")
    assert not found.training
    x = tokens_for(block)
    assert torch.equal(found(x), block.eval()(x))
    assert str(found) == str(block)
    assert found._options() == block._options()


def test_a_folder_knows_every_option_of_its_block() -> None:
    made_of_parts = {"cell", "scorer", "source", "device", "dtype"}
    of_the_source = {"input_size", "beam_size", "slice_size", "dropout", "stochastic"}
    known = set(inspect.signature(BeamTreeEncoder).parameters) - made_of_parts
    assert set(BeamTreeEncoder(D)._options()) == known
    known = set(inspect.signature(BeamTreeContextualizer).parameters) - made_of_parts - of_the_source
    assert set(BeamTreeContextualizer(D)._options()) == known | {"source"}


def test_a_classifier_comes_back_from_its_folder_with_its_notes(tmp_path: Path) -> None:
    model = small_model()
    model.notes = {"epoch": 3, "dev_accuracy": 0.75}
    model.save_pretrained(tmp_path / "model")
    found = TreeClassifier.from_pretrained(tmp_path / "model")
    assert found.predict(EXPRESSIONS) == model.predict(EXPRESSIONS)
    assert found.notes == model.notes
    assert TreeClassifier.from_pretrained("listops-ebt-grc").predict(EXPRESSIONS)[0].label == "9"


def test_loading_a_block_does_not_disturb_the_random_numbers(tmp_path: Path) -> None:
    BeamTreeEncoder(D).save_pretrained(tmp_path)
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    BeamTreeEncoder.from_pretrained(tmp_path)
    assert torch.equal(torch.rand(3), wanted)


def test_a_card_describes_the_folder_and_is_never_overwritten(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    model = small_model(task="logic")
    model.notes = {"epoch": 3, "dev_accuracy": 0.75, "seconds": 8.0}
    model.save_pretrained(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "beamtree"
    assert card.data.pipeline_tag == "text-classification"
    assert set(card.data.tags) == {"beamtree", "ebt-grc", "logic"}
    assert "| dev accuracy | 0.75 |" in card.text
    assert "seconds" not in card.text
    assert "`\\|`" in card.text  # a label that is a column's border
    assert "model.predict([(first, second)])" in card.text

    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"

    BeamTreeContextualizer(D, residual=True).save_pretrained(tmp_path / "block")
    block_card = ModelCard.load(tmp_path / "block" / "README.md")
    assert "| residual | yes |" in block_card.text
    assert 'BeamTreeContextualizer.from_pretrained("this/repository")' in block_card.text


def parametrized() -> BeamTreeEncoder:
    encoder = BeamTreeEncoder(D)
    nn.utils.parametrizations.weight_norm(encoder.cell.w1)
    return encoder


def of_two_dtypes() -> BeamTreeEncoder:
    encoder = BeamTreeEncoder(D)
    encoder.cell.bfloat16()
    return encoder


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BeamTreeEncoder(D, cell=nn.Bilinear(D, D, D)), "cell or scorer of your own"),
        (lambda: BeamTreeEncoder(D, scorer=nn.Bilinear(D, D, 1)), "cell or scorer of your own"),
        (lambda: BeamTreeEncoder(D, cell=GatedRecursiveCell(D, hidden_size=5)), "of your own"),
        (
            lambda: BeamTreeContextualizer(D, source=create_encoder("balanced-grc", D)),
            "over a BalancedTreeGRC cannot be saved as a folder",
        ),
        (parametrized, "unknown tensor .*parametrizations.*; remove parametrizations"),
        (of_two_dtypes, "is bfloat16 .*, expected float32 .*convert all weights to one dtype"),
    ],
)
def test_what_options_cannot_rebuild_is_refused_before_a_file_is_written(
    tmp_path: Path, make: Any, message: str
) -> None:
    with pytest.raises(BeamtreeError, match=message):
        make().save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"d_model": 7}}, "model.safetensors does not fit config.json: 'leaf.linear.weight'"),
        (
            {"options": {"d_model": D, "wings": 2}},
            "config.json: cannot make a BeamTreeEncoder with its options: .*wings",
        ),
        ({"options": {"d_model": "six"}}, "cannot make a BeamTreeEncoder with its options: d_model must be"),
        ({"options": {"d_model": 10**18}}, "config.json"),
        ({"options": {"d_model": D, "input_size": 2**50}}, "options.input_size must be at most 65536"),
        ({"options": []}, r"options must be a table, got \[\]"),
        ({"block": "BeamTreeContextualizer"}, "holds a BeamTreeContextualizer, not a BeamTreeEncoder"),
        ({"format": 9}, "has model format 9"),
    ],
)
def test_an_impossible_block_folder_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    BeamTreeEncoder(D).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(BeamtreeError, match=message):
        BeamTreeEncoder.from_pretrained(tmp_path)


def test_a_repository_in_the_cache_is_loaded_offline(tmp_path: Path) -> None:
    model, commit = small_model(), "0" * 40
    cached = tmp_path / "models--someone--trees"
    model.save_pretrained(cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    found = TreeClassifier.from_pretrained("someone/trees", cache_dir=tmp_path, local_files_only=True)
    assert found.predict(EXPRESSIONS) == model.predict(EXPRESSIONS)
    with pytest.raises(BeamtreeError, match="no folder 'someone/other', and it could not be downloaded: "):
        TreeClassifier.from_pretrained("someone/other", cache_dir=tmp_path, local_files_only=True)


def test_a_revision_is_loaded_where_one_is_named_and_the_main_branch_otherwise(tmp_path: Path) -> None:
    cached = tmp_path / "models--someone--trees"
    (cached / "refs").mkdir(parents=True)
    models = {"main": small_model(seed=1), "v2": small_model(seed=2)}
    for commit, (revision, model) in zip(("0" * 40, "1" * 40), models.items(), strict=True):
        model.save_pretrained(cached / "snapshots" / commit)
        (cached / "refs" / revision).write_text(commit)
    for asked, wanted in ((None, "main"), ("main", "main"), ("v2", "v2"), ("1" * 40, "v2")):
        found = TreeClassifier.from_pretrained(
            "someone/trees", revision=asked, cache_dir=tmp_path, local_files_only=True
        )
        assert found.predict(EXPRESSIONS) == models[wanted].predict(EXPRESSIONS)


@pytest.fixture
def uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's side of an upload, as a folder."""
    from huggingface_hub import HfApi, RepoUrl

    def create_repo(self: HfApi, repo_id: str, **options: Any) -> RepoUrl:
        return RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(self: HfApi, *, repo_id: str, folder_path: Path, **options: Any) -> str:
        shutil.copytree(folder_path, tmp_path / repo_id)
        return f"https://huggingface.co/{repo_id}/commit/1 {options['commit_message']}"

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    return tmp_path


def test_what_is_pushed_is_the_folder_with_its_card(uploads: Path) -> None:
    model = small_model()
    address = model.push_to_hub("someone/trees", commit_message="First", private=True)
    assert address == "https://huggingface.co/someone/trees/commit/1 First"
    pushed = uploads / "someone" / "trees"
    names = {"README.md", "config.json", "model.safetensors", "vocabulary.json"}
    assert {path.name for path in pushed.iterdir()} == names
    assert "library_name: beamtree" in (pushed / "README.md").read_text()
    assert TreeClassifier.from_pretrained(pushed).predict(EXPRESSIONS) == model.predict(EXPRESSIONS)

    block = BeamTreeEncoder(D)
    assert block.save_pretrained(uploads / "block", push_to_hub=True, repo_id="someone/block")
    pushed_block = BeamTreeEncoder.from_pretrained(uploads / "someone" / "block").state_dict()
    assert all(torch.equal(weight, pushed_block[name]) for name, weight in block.state_dict().items())


def test_an_ensemble_is_pushed_with_its_members_and_all_of_it_is_fetched(uploads: Path) -> None:
    from huggingface_hub.utils import filter_repo_objects

    model = Ensemble({name: small_model(seed=seed) for seed, name in enumerate(("one", "two"))}).eval()
    model.push_to_hub("someone/trees")
    pushed = uploads / "someone" / "trees"
    files = {path.relative_to(pushed).as_posix() for path in pushed.rglob("*") if path.is_file()}
    needed = {f"{name}/{file}" for name in ("one", "two") for file in (CONFIG, WEIGHTS, VOCABULARY)}
    assert files == {CARD, CONFIG, *needed}
    assert set(filter_repo_objects(files, allow_patterns=_FILES)) == files
    assert Ensemble.from_pretrained(pushed).predict(EXPRESSIONS) == model.predict(EXPRESSIONS)


def test_an_unreachable_hub_becomes_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi

    def create_repo(self: HfApi, repo_id: str, **options: Any) -> None:
        raise ConnectionError("no route to the hub\nand more")

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    with pytest.raises(BeamtreeError, match=r"^cannot push to 'a/b': no route to the hub$"):
        BeamTreeEncoder(D).push_to_hub("a/b")
    mine = BeamTreeEncoder(D, cell=nn.Bilinear(D, D, D))
    monkeypatch.setattr(
        HfApi, "create_repo", lambda self, repo_id, **_: type("Url", (), {"repo_id": repo_id})
    )
    with pytest.raises(BeamtreeError, match=r"^an encoder with a cell"):
        mine.push_to_hub("a/b")


def test_without_the_extra_folders_work_and_the_hub_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    BeamTreeEncoder(D).save_pretrained(tmp_path / "block")
    BeamTreeEncoder.from_pretrained(tmp_path / "block")
    with pytest.raises(MissingExtraError, match=r"push_to_hub needs .*beamtree\[hub\]"):
        BeamTreeEncoder(D).push_to_hub("a/b")
    with pytest.raises(
        MissingExtraError, match=r"no folder 'a/b', and downloading it from the hub .*beamtree\[hub\]"
    ):
        BeamTreeEncoder.from_pretrained("a/b")


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "/a", "a" * 5000])
def test_what_is_neither_folder_nor_repository_is_refused(name: str) -> None:
    with pytest.raises(BeamtreeError, match=r"there is no folder .*owner/name"):
        BeamTreeEncoder.from_pretrained(name)
    with pytest.raises(BeamtreeError, match=r"there is no model 'listops-ebt': .*did you mean"):
        TreeClassifier.from_pretrained("listops-ebt")
