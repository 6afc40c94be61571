"""Masked-token modelling on logic formulas: 15 % of the tokens are hidden and predicted from the rest.

python examples/masked_logic.py --steps 800
"""

import argparse
from collections.abc import Sequence
from random import Random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from beamtree import HybridStack, TaggerHead
from beamtree.data.logic import TOKENS
from beamtree.data.vocabulary import UNK, Vocabulary
from beamtree.nn.heads import tag_accuracy, tag_loss

HIDDEN_SHARE = 0.15
VARIABLES_OF_A_FORMULA = 3  # few enough that a variable says something about the others


def draw_formula(random: Random, variables: Sequence[str], budget: int) -> str:
    if budget == 0 or random.random() < 0.2:
        return random.choice(variables)
    if random.random() < 0.3:
        return f"( not {draw_formula(random, variables, budget - 1)} )"
    left, right = (draw_formula(random, variables, budget - 1) for _ in range(2))
    return f"( {left} ( {random.choice(('and', 'or'))} {right} ) )"


class FormulaModel(nn.Module):
    def __init__(self, vocabulary_size: int, d_model: int, layers: Sequence[str]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, d_model, padding_idx=0)
        self.stack = HybridStack(layers, d_model)
        self.head = TaggerHead(d_model, vocabulary_size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # (B, n) -> (B, n, vocabulary)
        logits: torch.Tensor = self.head(self.stack(self.embedding(ids), ids == 0))
        return logits


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--layers", nargs="+", default=["ssm", "tree"], help="any of tree, attention, ssm")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    vocabulary, random = Vocabulary(TOKENS), Random(options.seed)
    names = TOKENS[2:8]

    def draw_batch(size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        formulas = [
            draw_formula(random, random.sample(names, VARIABLES_OF_A_FORMULA), 4) for _ in range(size)
        ]
        rows = [torch.tensor(vocabulary.encode(formula.split())) for formula in formulas]
        ids = pad_sequence(rows, batch_first=True)
        is_hidden = (torch.rand(ids.shape) < HIDDEN_SHARE) & (ids != 0)
        return ids.masked_fill(is_hidden, UNK), ids, is_hidden

    model = FormulaModel(len(vocabulary), options.d_model, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        shown, ids, is_hidden = draw_batch(32)
        loss = tag_loss(model(shown), ids, is_hidden)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    model.eval()
    shown, ids, is_hidden = draw_batch(500)
    with torch.no_grad():
        accuracy = tag_accuracy(model(shown), ids, is_hidden)
    print(f"{accuracy:.1%} of {int(is_hidden.sum())} hidden tokens in 500 new formulas")
    return accuracy


if __name__ == "__main__":
    main()
