"""The splits of ListOps: the lines of a file that are one, and the draw that makes a file.

The base set is one draw of 100,000 expressions in two files. The first 1,000 lines of its train file are the
dev split, and the length limit of the training split is applied at reading: files are as published, and the
published ones can take their place.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from beamtree.data.listops.law import Process
from beamtree.errors import BeamtreeError, nearest

LRA_HEADER = "Source\tTarget"


@dataclass(frozen=True)
class Split:
    """Lines of a file, from `start` (counted from 0) to before `stop`, of at most `max_length` tokens."""

    description: str
    file: str
    start: int = 0
    stop: int | None = None
    max_length: int | None = None


SPLITS: dict[str, Split] = {
    "train": Split("up to 100 tokens, up to 5 arguments", "train_d20s.tsv", start=1000, max_length=100),
    "dev": Split("like the near-IID test", "train_d20s.tsv", stop=1000),
    "near-iid": Split("like train, without its limit on length", "test_d20s.tsv"),
    **{
        f"{low}-{low + 100}": Split(
            f"{low + 1} to {low + 99} tokens, up to 5 arguments", f"test_{low}_{low + 100}.tsv"
        )
        for low in range(200, 1000, 100)
    },
    "10-args": Split("100 to 1000 tokens, up to 10 arguments", "test_ood_10arg.tsv"),
    "15-args": Split("100 to 1000 tokens, up to 15 arguments", "test_ood_15arg.tsv"),
    "lra-test": Split("Long Range Arena: 501 to 1999 tokens, up to 10 arguments", "basic_test.tsv"),
    "lra-valid": Split("Long Range Arena, validation", "basic_val.tsv"),
    "lra-train": Split("Long Range Arena, training", "basic_train.tsv"),
    "5-args": Split("100 to 1000 tokens, up to 5 arguments", "test_iid_arg.tsv"),
    "depth-train": Split("20 to 100 tokens, nested up to 6 deep", "train_d6s.tsv"),
    "depth-dev": Split("20 to 100 tokens, nested 7 deep", "dev_d7s.tsv"),
    "depth-test": Split("20 to 100 tokens, nested 8 deep or more", "test_dg8s.tsv"),
}


def find_split(name: str) -> Split:
    if name not in SPLITS:
        raise BeamtreeError(f"ListOps has no split {name!r}{nearest(name, SPLITS)}")
    return SPLITS[name]


@dataclass(frozen=True)
class Draw:
    """One draw of distinct expressions, shared out over files; lengths and nesting include both bounds."""

    files: Mapping[str, int]  # name -> lines
    process: Process
    lengths: tuple[int, int] | None = None  # None: the free process, shuffled
    nesting: tuple[int, int | None] = (0, None)
    lra_format: bool = False

    @property
    def count(self) -> int:
        return sum(self.files.values())


_BASE, _LRA = Process(max_depth=20, max_args=5), Process(max_depth=10, max_args=10)
DRAWS = (
    Draw({"train_d20s.tsv": 90_000, "test_d20s.tsv": 10_000}, _BASE),
    *(
        Draw({f"test_{low}_{low + 100}.tsv": 2000}, _BASE, (low + 1, low + 99))
        for low in range(200, 1000, 100)
    ),
    Draw({"test_ood_10arg.tsv": 2000}, Process(9, 10), (100, 1000)),
    Draw({"test_ood_15arg.tsv": 2000}, Process(9, 15), (100, 1000)),
    Draw({"test_iid_arg.tsv": 2000}, Process(9, 5), (100, 1000)),
    # The base process given depth and length. (The published scripts draw dev and test with operators more
    # frequent, 0.3 for 0.25, and less deep, max_depth 10; and train with max_depth 6, so nested up to 5.)
    Draw({"train_d6s.tsv": 100_000}, _BASE, (20, 100), (0, 6)),
    Draw({"dev_d7s.tsv": 2000}, _BASE, (20, 100), (7, 7)),
    Draw({"test_dg8s.tsv": 2000}, _BASE, (20, 100), (8, None)),
    Draw({"basic_test.tsv": 2000}, _LRA, (501, 1999), lra_format=True),
    Draw({"basic_val.tsv": 2000}, _LRA, (501, 1999), lra_format=True),
    Draw({"basic_train.tsv": 96_000}, _LRA, (501, 1999), lra_format=True),
)
