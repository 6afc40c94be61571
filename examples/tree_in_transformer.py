"""A tree block between Transformer layers: predicts a ListOps expression's value from its first token.

python examples/tree_in_transformer.py --steps 1500
"""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from beamtree import BeamTreeContextualizer, TreeTransformerLayer
from beamtree.data.listops.draws import sample_expressions
from beamtree.data.listops.language import TOKENS
from beamtree.data.vocabulary import Vocabulary


class ExpressionReader(nn.Module):
    def __init__(self, vocabulary_size: int, d_model: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, d_model, padding_idx=0)
        block = BeamTreeContextualizer(d_model, residual=True)
        # Modules that expect a Transformer layer, such as nn.TransformerEncoder, accept the tree block.
        self.tree = nn.TransformerEncoder(TreeTransformerLayer(block), 1, enable_nested_tensor=False)
        layer = nn.TransformerEncoderLayer(d_model, 4, 2 * d_model, dropout=0.0, batch_first=True)
        self.attention = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(d_model, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:  # (B, n) -> (B, 10)
        is_padding = ids == 0
        x = self.tree(self.embedding(ids), src_key_padding_mask=is_padding)
        x = self.attention(x, src_key_padding_mask=is_padding)
        logits: torch.Tensor = self.out(x[:, 0])
        return logits


def main(arguments: Sequence[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    vocabulary = Vocabulary(TOKENS)
    examples = sample_expressions(5500, seed=options.seed, min_length=4, max_length=25)
    ids = [torch.tensor(vocabulary.encode(example.sentences[0])) for example in examples]
    values = torch.tensor([int(example.label) for example in examples])

    model = ExpressionReader(len(vocabulary), options.d_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(options.steps):
        chosen = torch.randint(5000, (32,))
        logits = model(pad_sequence([ids[i] for i in chosen], batch_first=True))
        loss = F.cross_entropy(logits, values[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    model.eval()
    with torch.no_grad():
        predicted = model(pad_sequence(ids[5000:], batch_first=True)).argmax(-1)
    accuracy = (predicted == values[5000:]).double().mean().item()
    print(f"{accuracy:.1%} of 500 new expressions")
    return accuracy


if __name__ == "__main__":
    main()
