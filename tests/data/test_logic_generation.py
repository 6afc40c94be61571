"""Generated sets of logical inference: the published sizes and shares, the same bytes from a seed."""

import hashlib
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from beamtree.data.logic import TASK, generate_logic, read, read_file, worlds_of
from beamtree.errors import BeamtreeError
from beamtree.files.lines import read_lines

REPOSITORY = Path(__file__).resolve().parents[2]
PUBLISHED = REPOSITORY.parent / "shared" / "data" / "proplogic"
TRAIN_SIZES = (30, 2319, 12451, 23252, 30373, 34152, 32952, 26671, 18962, 12634, 8181, 4894, 4831)
TEST_SIZES = (6, 410, 2198, 4104, 5361, 6027, 5816, 4707, 3347, 2230, 1444, 864, 853)
RELATION_SHARES = {"#": 0.5308, "<": 0.1102, ">": 0.1099, "|": 0.1066, "v": 0.1065, "=": 0.0188, "^": 0.0173}


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published files are not here")
def test_the_published_files_are_sound_and_have_the_published_sizes() -> None:
    sizes = {split: sum(1 for _ in read(PUBLISHED, split)) for split in TASK.splits if split != "train"}
    assert sizes == {"dev": 13_552} | {f"test{i}": size for i, size in enumerate(TEST_SIZES)}
    for index, size in enumerate(TRAIN_SIZES):
        assert sum(1 for _ in read_lines(PUBLISHED / f"train{index}.txt.xz")) == size


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A set of full size, made by another process: with its own hash seed, and untraced, so in seconds."""
    folder = tmp_path_factory.mktemp("logic")
    program = (
        "import sys; from pathlib import Path; from beamtree.data.logic import generate_logic\n"
        "generate_logic(Path(sys.argv[1]), seed=11)"
    )
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=REPOSITORY)
    return {path.name: path for path in folder.iterdir()}


def test_generated_sets_have_the_published_counts_per_index(generated: dict[str, Path]) -> None:
    assert sorted(generated) == sorted(f"{part}{index}" for index in range(13) for part in ("train", "test"))
    counts = {name: path.read_text().count("\n") for name, path in generated.items()}
    assert (counts["train0"], counts["test0"]) == (30, 6)
    for index, published in enumerate(map(sum, zip(TRAIN_SIZES, TEST_SIZES, strict=True))):
        train, test = counts[f"train{index}"], counts[f"test{index}"]
        assert train == (train + test) * 85 // 100
        # Both are draws of one distribution: four standard deviations of a difference of two counts.
        assert abs(train + test - published) <= 4 * math.sqrt(2 * published)


def test_generated_sets_have_the_published_shares_of_relations(generated: dict[str, Path]) -> None:
    relations = Counter(line[0] for path in generated.values() for line in path.read_text().splitlines())
    total = relations.total()
    for relation, share in RELATION_SHARES.items():
        assert relations[relation] / total == pytest.approx(share, abs=4 * math.sqrt(2 * share / total))


def test_generated_files_are_read_back_and_hold_what_their_names_say(generated: dict[str, Path]) -> None:
    for name in ("train0", "test1", "test6", "test11", "test12"):
        pairs = list(read_file(generated[name]))
        assert len({pair.sentences for pair in pairs}) == len(pairs)
        for pair in pairs:
            operators = max(sum(t in ("and", "or", "not") for t in sentence) for sentence in pair.sentences)
            assert min(operators, 12) == int(name.removeprefix("train").removeprefix("test"))
            assert len({t for sentence in pair.sentences for t in sentence if t in "abcdef"}) <= 4
            for sentence in pair.sentences:
                assert worlds_of(sentence) not in (0, 2**64 - 1)


def test_long_generated_formulas_use_operators_and_variables_at_the_rates_of_the_process(
    generated: dict[str, Path],
) -> None:
    tokens = Counter(
        token for index in range(9, 13) for token in generated[f"train{index}"].read_text().split()
    )
    binary = tokens["and"] + tokens["or"]
    assert tokens["and"] / binary == pytest.approx(0.5, abs=0.01)
    leaves = [tokens[name] for name in "abcdef"]
    assert min(leaves) / max(leaves) > 0.98


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    def contents(folder: str, seed: int) -> bytes:
        files = generate_logic(tmp_path / folder, seed=seed, pairs=3000)
        return b"".join(path.read_bytes() for path in files.values())

    first = contents("first", 5)
    assert first == contents("again", 5)
    assert first != contents("other", 6)
    assert b"\r" not in first


def test_the_bytes_of_a_seed_never_change_with_a_release(tmp_path: Path) -> None:
    files = generate_logic(tmp_path, seed=0, pairs=3000)
    content = b"".join(path.read_bytes() for path in files.values())
    assert hashlib.sha256(content).hexdigest() == (
        "02753b8477579169382097c6858327518f32c9a6436b56dc2e1d7cdef7075992"
    )


def test_progress_is_reported_up_to_the_end(tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []
    generate_logic(tmp_path, seed=0, pairs=2500, progress=lambda done, total: reports.append((done, total)))
    assert reports == [(1000, 2500), (2000, 2500), (2500, 2500)]


def test_too_few_pairs_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BeamtreeError, match=r"10 pairs leave .*train12.* empty: draw more"):
        generate_logic(tmp_path / "out", seed=0, pairs=10)
    assert not (tmp_path / "out").exists()
