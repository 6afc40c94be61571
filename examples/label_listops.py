"""Sequence labelling: predicts for each ListOps token the value and the depth of its innermost list.

Trains two stacks on short expressions: a hybrid with a tree block, and one without it that is at least as
large. New short expressions show whether a stack has learnt the task, longer ones whether it generalises.
Each seed is an independent run of both.

    python examples/label_listops.py --steps 4000 --seeds 3
"""

import argparse
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from beamtree import HybridStack, TaggerHead
from beamtree.data.listops.draws import sample_expressions
from beamtree.data.listops.language import TOKENS, tag_tokens
from beamtree.data.task import Tokens
from beamtree.data.vocabulary import Vocabulary
from beamtree.nn.heads import tag_accuracy, tag_loss

# A tree block has about as many parameters as three attention layers; `widen` makes up for the difference.
STACKS = {"hybrid": ["ssm", "tree", "attention"], "plain": ["ssm", *["attention"] * 4]}
DEEPEST = 6
SHORT, LONG = (4, 30), (60, 100)  # tokens
ARGUMENTS = range(2, 6)  # the numbers of arguments that lists may have
VOCABULARY = Vocabulary(TOKENS)


class Labelled(NamedTuple):
    ids: list[Tensor]
    values: list[Tensor]
    depths: list[Tensor]

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ids, values, depths = (pad_sequence([part[i] for i in chosen], batch_first=True) for part in self)
        return ids, values, depths


class Labeller(nn.Module):
    def __init__(self, layers: Sequence[str], d_model: int, feedforward_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), d_model, padding_idx=0)
        self.stack = HybridStack(layers, d_model, feedforward_size=feedforward_size)
        self.value, self.depth = TaggerHead(d_model, 10), TaggerHead(d_model, DEEPEST + 1)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.stack(self.embedding(ids), ids == 0)
        return self.value(tokens), self.depth(tokens)

    def size(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())


def widen(layers: Sequence[str], d_model: int, size: int) -> int:
    """The smallest feed-forward width ≥ 4·d_model that gives a labeller at least `size` parameters."""
    width = 4 * d_model
    missing = size - Labeller(layers, d_model, width).size()
    a_unit = layers.count("attention") * (2 * d_model + 1)
    return width + max(0, -(-missing // a_unit))


def draw(count: int, lengths: tuple[int, int], seed: int) -> list[Tokens]:
    """Draw equal numbers of expressions whose lists have at most two, three, four and five arguments.

    [SM is the sum modulo 10. From long lists alone it looks like noise for a very long time. But two digits
    have only 100 sums, which are soon learnt, and a third argument is one more step of the same kind.
    """
    shortest, longest = lengths
    found = [
        sample_expressions(
            -(-count // len(ARGUMENTS)),
            seed=seed,
            max_args=most,
            min_length=shortest,
            max_length=longest,
            max_nesting=DEEPEST,
        )
        for most in ARGUMENTS
    ]
    return [example.sentences[0] for part in found for example in part]


def label(expressions: Sequence[Tokens]) -> Labelled:
    tags = [tag_tokens(tokens) for tokens in expressions]
    return Labelled(
        [torch.tensor(VOCABULARY.encode(tokens)) for tokens in expressions],
        [torch.tensor(values) for values, _ in tags],
        [torch.tensor(depths) for _, depths in tags],
    )


def train(model: Labeller, data: Labelled, steps: int, device: str) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps + 1, pct_start=0.1)
    for step in range(steps):
        batch = data.batch(torch.randint(len(data.ids), (32,)))
        ids, values, depths = (part.to(device) for part in batch)
        value_logits, depth_logits = model(ids)
        loss = tag_loss(value_logits, values, ids != 0) + tag_loss(depth_logits, depths, ids != 0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 0:
            print(f"  step {step}: loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def test(model: Labeller, data: Labelled, device: str) -> tuple[float, float]:
    """Return the shares of tokens with the right value and with the right depth."""
    model.eval()
    value_right = depth_right = 0.0
    for chosen in torch.arange(len(data.ids)).split(50):
        ids, values, depths = (part.to(device) for part in data.batch(chosen))
        value_logits, depth_logits = model(ids)
        tokens = int((ids != 0).sum())
        value_right += tokens * tag_accuracy(value_logits, values, ids != 0)
        depth_right += tokens * tag_accuracy(depth_logits, depths, ids != 0)
    tokens = sum(map(len, data.ids))
    return value_right / tokens, depth_right / tokens


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=1, help="number of runs of each stack")
    parser.add_argument("--first-seed", type=int, default=0, help="to split the seeds between machines")
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--expressions", type=int, default=200_000, help="number to train on")
    parser.add_argument("--tested", type=int, default=1000, help="number of short and of long ones to test")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)

    d_model = options.d_model
    hybrid_size = Labeller(STACKS["hybrid"], d_model, 4 * d_model).size()
    long_values: dict[str, list[float]] = {name: [] for name in STACKS}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        short, long = (draw(options.tested, tokens, 2 * seed) for tokens in (SHORT, LONG))
        known = draw(options.expressions, SHORT, 2 * seed + 1)
        unseen = set(short)
        data, near, far = (
            label([tokens for tokens in known if tokens not in unseen]),
            label(short),
            label(long),
        )
        for name, layers in STACKS.items():
            torch.manual_seed(seed)
            model = Labeller(layers, d_model, widen(layers, d_model, hybrid_size)).to(options.device)
            print(f"{name}, {' + '.join(layers)}, {model.size():,} parameters, seed {seed}")
            train(model, data, options.steps, options.device)
            near_value, near_depth = test(model, near, options.device)
            far_value, far_depth = test(model, far, options.device)
            long_values[name].append(far_value)
            print(f"  {SHORT[0]}–{SHORT[1]} tokens: value {near_value:.1%}, depth {near_depth:.1%}")
            print(f"  {LONG[0]}–{LONG[1]} tokens: value {far_value:.1%}, depth {far_depth:.1%}", flush=True)
    margins = [a - b for a, b in zip(*long_values.values(), strict=True)]
    print(f"margin of the hybrid on long values: mean {mean(margins):+.1%}, lowest {min(margins):+.1%}")
    return mean(margins)


if __name__ == "__main__":
    main()
