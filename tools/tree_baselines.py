"""What trees without learning are worth: their unlabelled bracketing F1 against the gold trees, in %.

Their figures stand below those of trained models in the report, by `docs/runs/remarks.toml`. Balanced trees
join neighbours two by two; random ones choose among the pairs left with equal chances.

    python -m tools.tree_baselines listops data/listops near-iid 200-300
    python -m tools.tree_baselines logic data/logic test10
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

from beamtree.data.task import BadRows, Example, Task, find_task
from beamtree.trees.brackets import Agreement


def balanced(n: int) -> list[int]:
    """The merges that join neighbours two by two until one node is left."""
    merges: list[int] = []
    while n > 1:
        merges += range(n // 2)
        n -= n // 2
    return merges


def shapes(random: Random) -> dict[str, Callable[[int], Sequence[int]]]:
    """From a number of tokens to merge positions."""
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Bracketing F1 of trees without learning.")
    parser.add_argument("task", choices=("listops", "logic"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("splits", nargs="+")
    options = parser.parse_args(arguments)
    task = find_task(options.task)
    for split in options.splits:
        found = f1_by_shape(task, task.read(options.folder, split, BadRows()))
        shown = ", ".join(f"{name} {100 * f1:.2f}" for name, f1 in found.items() if f1 is not None)
        print(f"{split}: {shown}", flush=True)


if __name__ == "__main__":
    main()
