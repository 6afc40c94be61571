"""How hard a draw of ListOps is, whoever reads it: the accuracy of one that errs as trained cells do.

It gets everything right but the median of more than five values, for which it takes the fourth largest. A
split moves all models together, so this tells a hard draw from a weak model (docs/beyond.md):

    python -m tools.draw_difficulty data/listops/test_ood_15arg.tsv data/fresh/test_ood_15arg.tsv
    python -m tools.draw_difficulty --arguments 15 --draws 8
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev

from beamtree.data.listops import read_file, sample_expressions
from beamtree.data.listops.language import VALUE_OF
from beamtree.data.task import Example

SIZE = 2000  # expressions in a split
LAWS = {
    "10": {"max_depth": 9, "max_args": 10, "min_length": 100, "max_length": 1000},
    "15": {"max_depth": 9, "max_args": 15, "min_length": 100, "max_length": 1000},
    "lra": {"max_depth": 10, "max_args": 10, "min_length": 501, "max_length": 1999},
}


def stand_in(tokens: Sequence[str]) -> int:
    """The value of an expression, with the fourth largest as the median of more than five."""
    lists: list[tuple[str, list[int]]] = [("", [])]
    for token in tokens:
        if token in VALUE_OF:
            lists.append((token, []))
        elif token == "]":
            operator, values = lists.pop()
            many = operator == "[MED" and len(values) > 5
            lists[-1][1].append(sorted(values)[-4] if many else VALUE_OF[operator](values))
        else:
            lists[-1][1].append(int(token))
    return lists[0][1][0]


def accuracy(examples: Iterable[Example]) -> float:
    """In percent."""
    return 100 * mean(str(stand_in(example.sentences[0])) == example.label for example in examples)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How hard draws of ListOps are.")
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--arguments", choices=LAWS, default="15", help="the law of further draws")
    parser.add_argument("--draws", type=int, default=0, help="how many splits of 2,000 to draw beside")
    parser.add_argument("--seed", type=int, default=4242)
    options = parser.parse_args(arguments)
    for path in options.files:
        print(f"{path}: {accuracy(read_file(path)):.2f}")
    if options.draws:
        examples = sample_expressions(options.draws * SIZE, seed=options.seed, **LAWS[options.arguments])
        found = [accuracy(examples[i : i + SIZE]) for i in range(0, len(examples), SIZE)]
        spread = f", spread of a split {stdev(found):.2f}" if len(found) > 1 else ""
        print(f"{options.draws} draws, {options.arguments}: mean {mean(found):.2f}{spread}")


if __name__ == "__main__":
    main()
