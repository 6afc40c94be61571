"""Where a ListOps model errs: in its cell or in its trees? (docs/beyond.md)

Along gold trees only the cell can err. `lists` draws flat lists such as `[MED 3 1 … ]` and prints the
accuracy by operator and number of arguments, and how often the answer to a MED is the largest argument, the
second, and so on. `trees` compares, on files of expressions, the accuracy along gold trees with that along
the model's own, and counts the different trees among its beams. All in %, except for the count.

    python -m tools.listops_errors lists listops-ebt-grc
    python -m tools.listops_errors trees listops-ebt-grc data/fresh/test_ood_15arg.tsv --most 2000
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from beamtree import load_model
from beamtree.data.batching import Batch, EncodedExamples
from beamtree.data.listops import read_file
from beamtree.data.listops.language import OPERATORS, evaluate
from beamtree.data.task import Example

ARGUMENTS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15)
BATCH = 100


def flat_lists(operator: str, arguments: int, count: int, random: Random) -> list[Example]:
    """Lists of random digits with their values."""
    drawn = [(operator, *random.choices("0123456789", k=arguments), "]") for _ in range(count)]
    return [Example((tokens,), str(evaluate(tokens))) for tokens in drawn]


def batches(model: Any, examples: Sequence[Example]) -> Iterator[Batch]:
    task = model.task
    encoded = EncodedExamples.encode(examples, model.vocabulary, task.labels, gold_merges=task.gold_merges)
    for start in range(0, len(examples), BATCH):
        yield encoded.collate(torch.arange(start, min(start + BATCH, len(examples))).numpy())


def answers_along_gold(model: Any, batch: Batch) -> Tensor:
    """The answers (B,) that the model gives along gold trees."""
    x = model.embedding(batch.ids)
    root = model.encoder(x, batch.key_padding_mask, merges=batch.gold_merges)
    best: Tensor = model.classify(root, batch.ids, x, batch.key_padding_mask).argmax(1)
    return best


def share(right: Sequence[bool]) -> float:
    return 100 * mean(right)


def tell_lists(model: Any, options: argparse.Namespace) -> None:
    random = Random(options.seed)
    print("arguments", *(f"{arguments:4}" for arguments in ARGUMENTS))
    agreement: list[str] = []
    for operator in OPERATORS:
        print(f"{operator:9}", end="")
        for arguments in ARGUMENTS:
            examples = flat_lists(operator, arguments, options.lists, random)
            found = torch.cat([answers_along_gold(model, batch) for batch in batches(model, examples)])
            pairs = list(zip(found.tolist(), examples, strict=True))
            print(f" {share([answer == int(e.label) for answer, e in pairs]):4.0f}", end="", flush=True)
            if operator == "[MED":
                ranked = [(answer, sorted(e.sentences[0][1:-1], reverse=True)) for answer, e in pairs]
                by_rank = [share([str(a) == digits[k] for a, digits in ranked]) for k in range(arguments)]
                agreement.append(f"{arguments:9} {' '.join(f'{rank:4.0f}' for rank in by_rank)}")
        print()
    print("\nThe answer to a MED is the largest argument, the second, …", *agreement, sep="\n")


def tell_trees(model: Any, options: argparse.Namespace) -> None:
    for path in options.files:
        own, gold, different = [], [], []
        for batch in batches(model, list(islice(read_file(path), options.most))):
            logits, trees = model(batch.ids, batch.key_padding_mask, need_trees=True)
            own += (logits.argmax(1) == batch.labels).tolist()
            gold += (answers_along_gold(model, batch) == batch.labels).tolist()
            spans = (trees.spans[..., 0] * (trees.spans.shape[2] + 2) + trees.spans[..., 1]).sort(-1).values
            different += [
                len(of_beams[alive].unique(dim=0)) for of_beams, alive in zip(spans, trees.alive, strict=True)
            ]
            told = (
                f"own trees {share(own):.2f}, gold trees {share(gold):.2f}, different {mean(different):.2f}"
            )
            print(f"\r{path}: {told} ({len(own):,} expressions)", end="", flush=True)
        print()


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.listops_errors")
    kinds = parser.add_subparsers(required=True)
    lists = kinds.add_parser("lists", help="accuracy on flat lists along gold trees")
    lists.add_argument("model")
    lists.add_argument("--lists", type=int, default=400, help="of each operator and number of arguments")
    lists.add_argument("--seed", type=int, default=0)
    lists.set_defaults(tell=tell_lists)
    trees = kinds.add_parser("trees", help="own trees against gold trees")
    trees.add_argument("model")
    trees.add_argument("files", nargs="+", type=Path)
    trees.add_argument("--most", type=int, default=2000, help="expressions of a file, at most")
    trees.set_defaults(tell=tell_trees)
    options = parser.parse_args(arguments)
    options.tell(load_model(options.model), options)


if __name__ == "__main__":
    main()
