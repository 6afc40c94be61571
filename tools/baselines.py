"""Baselines without learning, to compare trained models with (docs/beyond.md, docs/runs/remarks.toml).

`draws` measures how hard a draw of ListOps is, independently of any model: it prints the accuracy of a
stand-in that makes the same errors as trained cells. The stand-in is always right, except that it takes the
fourth largest of more than five values for their median.
`trees` prints the unlabelled bracketing F1 of trees of fixed shapes against the gold trees. Balanced trees
join neighbours two by two; random trees choose among the remaining pairs with equal probability. All in %.

    python -m tools.baselines draws data/listops/test_ood_15arg.tsv data/fresh/test_ood_15arg.tsv
    python -m tools.baselines draws --law 15 --splits 8
    python -m tools.baselines trees listops data/listops near-iid 200-300
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from statistics import mean, stdev

from beamtree.data.listops import read_file, sample_expressions
from beamtree.data.listops.language import VALUE_OF
from beamtree.data.task import Example, Task, find_task
from beamtree.trees.brackets import Agreement

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
    return 100 * mean(str(stand_in(example.sentences[0])) == example.label for example in examples)


def tell_draws(options: argparse.Namespace) -> None:
    for path in options.files:
        print(f"{path}: {accuracy(read_file(path)):.2f}")
    if options.splits:
        examples = sample_expressions(options.splits * SIZE, seed=options.seed, **LAWS[options.law])
        found = [accuracy(examples[i : i + SIZE]) for i in range(0, len(examples), SIZE)]
        spread = f", spread of a split {stdev(found):.2f}" if len(found) > 1 else ""
        print(f"{options.splits} splits, {options.law}: mean {mean(found):.2f}{spread}")


def balanced(n: int) -> list[int]:
    """The merges that join neighbours two by two until one node is left."""
    merges: list[int] = []
    while n > 1:
        merges += range(n // 2)
        n -= n // 2
    return merges


def shapes(random: Random) -> dict[str, Callable[[int], Sequence[int]]]:
    """Functions from the number of tokens to the merges of a tree, by shape."""
    return {
        "left-branching": lambda n: [0] * (n - 1),
        "right-branching": lambda n: range(n - 2, -1, -1),
        "balanced": balanced,
        "random": lambda n: [random.randrange(left) for left in range(n - 1, 0, -1)],
    }


def f1_by_shape(task: Task, examples: Iterable[Example]) -> dict[str, float | None]:
    makers = shapes(Random(0))
    found = {name: Agreement() for name in makers}
    for example in examples:
        for tokens in example.sentences:
            gold = task.gold_merges(tokens) if task.gold_merges is not None else []
            for name, make in makers.items():
                found[name].add(list(make(len(tokens))), gold)
    return {name: agreement.f1 for name, agreement in found.items()}


def tell_trees(options: argparse.Namespace) -> None:
    task = find_task(options.task)
    for split in options.splits:
        found = f1_by_shape(task, task.read(options.folder, split))
        shown = ", ".join(f"{name} {100 * f1:.2f}" for name, f1 in found.items() if f1 is not None)
        print(f"{split}: {shown}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.baselines")
    kinds = parser.add_subparsers(required=True)
    draws = kinds.add_parser("draws", help="measure how hard draws of ListOps are")
    draws.add_argument("files", nargs="*", type=Path)
    draws.add_argument("--law", choices=LAWS, default="15", help="kind of the new splits")
    draws.add_argument("--splits", type=int, default=0, help="how many new splits of 2,000 to draw")
    draws.add_argument("--seed", type=int, default=4242)
    draws.set_defaults(tell=tell_draws)
    trees = kinds.add_parser("trees", help="bracketing F1 of trees without a model")
    trees.add_argument("task", choices=("listops", "logic"))
    trees.add_argument("folder", type=Path)
    trees.add_argument("splits", nargs="+")
    trees.set_defaults(tell=tell_trees)
    options = parser.parse_args(arguments)
    options.tell(options)


if __name__ == "__main__":
    main()
