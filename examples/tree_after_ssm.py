"""A tree block after a state-space layer: is a logic formula true when every variable is false?

python examples/tree_after_ssm.py --steps 800
"""

import argparse
from collections.abc import Sequence
from random import Random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from beamtree import HybridStack
from beamtree.data.logic import TOKENS, VARIABLES, worlds_of
from beamtree.data.vocabulary import Vocabulary


def draw_formula(random: Random, budget: int) -> str:
    if budget == 0 or random.random() < 0.2:
        return random.choice(VARIABLES)
    if random.random() < 0.3:
        return f"( not {draw_formula(random, budget - 1)} )"
    left, right = draw_formula(random, budget - 1), draw_formula(random, budget - 1)
    return f"( {left} ( {random.choice(('and', 'or'))} {right} ) )"


class FormulaReader(nn.Module):
    def __init__(self, vocabulary_size: int, d_model: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, d_model, padding_idx=0)
        self.stack = HybridStack(["ssm", "tree"], d_model)
        self.out = nn.Linear(d_model, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # (B, n) -> (B,)
        is_padding = ids == 0
        tokens = self.stack(self.embedding(ids), is_padding)  # zero at padding
        mean = tokens.sum(1) / (~is_padding).sum(1, keepdim=True)
        logits: torch.Tensor = self.out(mean).squeeze(-1)
        return logits


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    vocabulary, random = Vocabulary(TOKENS), Random(options.seed)
    formulas: dict[str, None] = {}
    while len(formulas) < 3500:
        formulas[draw_formula(random, 4)] = None
    tokens = [tuple(formula.split()) for formula in formulas]
    random.shuffle(tokens)
    ids = [torch.tensor(vocabulary.encode(formula)) for formula in tokens]
    truth = torch.tensor([worlds_of(formula) & 1 for formula in tokens], dtype=torch.float32)

    model = FormulaReader(len(vocabulary), options.d_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        chosen = torch.randint(3000, (32,))
        logits = model(pad_sequence([ids[i] for i in chosen], batch_first=True))
        loss = F.binary_cross_entropy_with_logits(logits, truth[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    model.eval()
    with torch.no_grad():
        predicted = model(pad_sequence(ids[3000:], batch_first=True)) > 0
    accuracy = (predicted == truth[3000:].bool()).double().mean().item()
    print(f"{accuracy:.1%} of 500 new formulas; {max(truth.mean(), 1 - truth.mean()):.1%} by a fixed answer")
    return accuracy


if __name__ == "__main__":
    main()
