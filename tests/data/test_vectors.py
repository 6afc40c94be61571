"""Word vectors from GloVe text, from a .zip of it and from an array with its words; unsound files say why."""

import gzip
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from beamtree.data import vectors as vectors_module
from beamtree.data.vectors import SHIPPED_FILE, SHIPPED_SHA256, find_vectors, read_shipped, read_vectors
from beamtree.errors import BeamtreeError
from tools.word_vectors import checksum_of, write_shipped

TABLE = {"the": [1.0, 2.0, 3.0], "cat": [0.5, -1.0, 0.25], "unused": [9.0, 9.0, 9.0]}


def as_text(table: dict[str, list[float]]) -> str:
    return "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in table.items())


def write_array(folder: Path, compressed: bool, dtype: type) -> Path:
    (folder / "small_words.txt").write_text("\n".join(TABLE) + "\n")
    path = folder / "small.npy"
    np.save(path, np.array(list(TABLE.values()), dtype=dtype))
    if compressed:
        packed = folder / "small.npy.xz"
        packed.write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
        return packed
    return path


@pytest.fixture(params=["text", "xz", "zip", "array", "array.xz", "float64"])
def vectors(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    kind = request.param
    if kind == "text":
        path = tmp_path / "small.txt"
        path.write_text(as_text(TABLE))
    elif kind == "xz":
        path = tmp_path / "small.txt.xz"
        path.write_bytes(lzma.compress(as_text(TABLE).encode()))
    elif kind == "zip":
        path = tmp_path / "small.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("small.txt", as_text(TABLE))
    else:
        dtype = np.float64 if kind == "float64" else np.float16
        path = write_array(tmp_path, kind == "array.xz", dtype)
    return path


def test_every_format_gives_the_vectors_of_the_wanted_words(vectors: Path) -> None:
    found = read_vectors(vectors, {"cat", "the", "dog"})
    assert dict(zip(found.words, found.table.tolist(), strict=True)) == {
        word: TABLE[word] for word in ("the", "cat")
    }
    assert found.table.dtype in (np.float16, np.float32)
    assert found.name == "small"
    assert find_vectors(vectors.parent) == vectors


def test_an_array_may_be_packed_by_gzip_and_a_name_keeps_its_points(tmp_path: Path) -> None:
    path = write_array(tmp_path, False, np.float32)
    packed = tmp_path / "glove.6B.3d.npy.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    found = read_vectors(packed, {"the"})
    assert (found.name, found.words) == ("glove.6B.3d", ("the",))


def test_lines_of_another_width_and_repetitions_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("3 2\nthe 1 2 \n. . . 5 6\ncat 3 4 5\nthe 7 8\ncat 3 4\n", encoding="utf-8")
    found = read_vectors(path, {"the", "cat", "."})
    assert dict(zip(found.words, found.table.tolist(), strict=True)) == {"the": [1, 2], "cat": [3, 4]}


def test_no_folder_and_no_file_are_no_vectors_and_several_are_too_many(tmp_path: Path) -> None:
    assert find_vectors(tmp_path / "absent") is None
    (tmp_path / "README.md").touch()
    assert find_vectors(tmp_path) is None
    for name in ("a.txt", "b.zip"):
        (tmp_path / name).touch()
    with pytest.raises(BeamtreeError, match=r"several vector files, a\.txt, b\.zip: name one as words\."):
        find_vectors(tmp_path)


def test_errors_of_invalid_files_say_what_is_wrong(tmp_path: Path) -> None:
    def problem(path: Path, content: bytes) -> str:
        path.write_bytes(content)
        with pytest.raises(BeamtreeError) as caught:
            read_vectors(path, {"the"})
        return str(caught.value)

    assert "a vector for none of the 1 words" in problem(tmp_path / "a.txt", b"cat 1 2\n")
    assert "a.txt, line 1: the vector of 'the' is not all numbers" in problem(
        tmp_path / "a.txt", b"the 1 x\n"
    )
    assert "not finite" in problem(tmp_path / "a.txt", b"the 1 nan\n")
    assert "not a valid .zip" in problem(tmp_path / "a.zip", b"PK")
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.txt", "the 1 2\n")
        archive.writestr("b.txt", "the 1 2\n")
    with pytest.raises(BeamtreeError, match=r"must have one \.txt file of vectors, found 2"):
        read_vectors(tmp_path / "two.zip", {"the"})
    with zipfile.ZipFile(tmp_path / "wrong.zip", "w") as archive:
        archive.writestr("a.txt", "cat 1 2\nthe 1 x\n")
    with pytest.raises(BeamtreeError, match=r"wrong\.zip, line 2: the vector of 'the' is not all numbers"):
        read_vectors(tmp_path / "wrong.zip", {"the"})
    with zipfile.ZipFile(tmp_path / "one.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", "the 1 2\n" * 1000)
    damaged = bytearray((tmp_path / "one.zip").read_bytes())
    damaged[35:45] = b"\xff" * 10
    assert "not a valid .zip" in problem(tmp_path / "damaged.zip", bytes(damaged))
    with pytest.raises(BeamtreeError, match="there is no file"):
        read_vectors(tmp_path / "absent.zip", {"the"})


def test_an_array_must_fit_its_list_of_words(tmp_path: Path) -> None:
    path = write_array(tmp_path, False, np.float32)
    (tmp_path / "small_words.txt").write_text("the\n")
    with pytest.raises(
        BeamtreeError, match=r"for each word of small_words.txt: it has 3 rows, the list has 1 words"
    ):
        read_vectors(path, {"the"})
    path.write_bytes(b"no array")
    with pytest.raises(BeamtreeError, match="is not a valid array"):
        read_vectors(path, {"the"})
    with path.open("wb") as file:
        np.savez(file, table=np.ones((1, 3)))
    with pytest.raises(BeamtreeError, match="is not a valid array"):
        read_vectors(path, {"the"})
    (tmp_path / "small_words.txt").unlink()
    with pytest.raises(BeamtreeError, match="needs one list of its words next to it"):
        read_vectors(path, {"the"})
    np.save(path, np.array(["the"], dtype=object), allow_pickle=True)
    (tmp_path / "small_words.txt").write_text("the\n")
    with pytest.raises(BeamtreeError, match=r"a table of floats, got object of shape \(1,\)"):
        read_vectors(path, {"the"})


def test_vectors_too_wide_or_too_many_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "words.txt").write_text("the\ncat\n")
    np.save(tmp_path / "wide.npy", np.zeros((2, 65537), np.float16))
    with pytest.raises(BeamtreeError, match=r"wide\.npy: 2 vectors of 65,537 numbers are too many"):
        read_vectors(tmp_path / "wide.npy", {"the"})
    (tmp_path / "wide.txt").write_text("the" + " 1" * 65537 + "\n")
    with pytest.raises(BeamtreeError, match=r"wide\.txt: 1 vectors of 65,537 numbers are too many"):
        read_vectors(tmp_path / "wide.txt", {"the"})
    monkeypatch.setattr(vectors_module, "_LARGEST_TABLE", 20)
    np.save(tmp_path / "wide.npy", np.zeros((2, 3), np.float32))
    with pytest.raises(BeamtreeError, match="2 vectors of 3 numbers are too many"):
        read_vectors(tmp_path / "wide.npy", {"the"})


def test_a_zip_with_a_long_list_of_contents_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        archive.writestr("a.txt", "the 1 2\n")
        for i in range(2000):
            archive.writestr(f"{i}.md", "")
    assert read_vectors(tmp_path / "many.zip", {"the"}).words == ("the",)
    monkeypatch.setattr(vectors_module, "_LARGEST_CONTENTS", 90_000)
    with pytest.raises(BeamtreeError, match=r"many\.zip is not a valid .*: the list of its contents has"):
        read_vectors(tmp_path / "many.zip", {"the"})


def test_the_package_has_vectors_of_frequent_words_in_less_than_ten_megabytes() -> None:
    assert SHIPPED_FILE.stat().st_size < 10_000_000
    assert checksum_of(SHIPPED_FILE) == SHIPPED_SHA256  # models name them by it
    found = read_shipped()
    assert found.numbers.shape == (len(found.words), 100)
    assert len(set(found.words)) == len(found.words) == len(found.scales) == 95_000
    assert found.words[:8] == ("the", ",", ".", "of", "to", "and", "in", "a")
    assert {"i", "n't", "'s", "10", "...", "u.s."} <= set(found.words)
    assert found.deviation() == pytest.approx(0.507, abs=0.001)
    readme = (SHIPPED_FILE.parent / "README.md").read_text(encoding="utf-8")
    assert SHIPPED_SHA256 in readme
    assert "PDDL" in readme


def test_eight_bits_keep_directions_and_lengths_and_are_written_alike_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = np.random.RandomState(0).randn(50, 100).astype(np.float32)
    words = [f"word{i}é" for i in range(50)]
    paths = tmp_path / "a.npz", tmp_path / "b.npz"
    for path in paths:
        write_shipped(path, words, table)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    monkeypatch.setattr(vectors_module, "SHIPPED_FILE", paths[0])
    found = read_shipped.__wrapped__()
    assert list(found.words) == words
    back = found.numbers * found.scales[:, None]
    lengths = np.linalg.norm(back, axis=1), np.linalg.norm(table, axis=1)
    assert ((back * table).sum(1) / lengths[0] / lengths[1]).min() > 0.9998
    assert lengths[0] == pytest.approx(lengths[1], rel=3e-3)
