"""Every encoder of the tables learns: 200 small steps beat the best constant answer on unseen expressions."""

import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from beamtree.data.listops import sample_expressions
from beamtree.data.task import Example, find_task
from beamtree.zoo.by_name import create_encoder, encoder_names

D, STEPS, BATCH, HELD_OUT = 16, 200, 16, 200
# What a step of each costs differs by far; these keep the whole file under a minute.
OPTIONS = {
    "om": {"memory_slots": 4},
    "bt-grc": {"beam_size": 3},
    "bt-grc-os": {"beam_size": 3},
    "transformer": {"layers": 2},
    "universal-transformer": {"steps": 3},
}


class Batch:
    def __init__(self, examples: list[Example]) -> None:
        task = find_task("listops")
        sentences = [example.sentences[0] for example in examples]
        n = max(map(len, sentences))
        numbers = {token: i for i, token in enumerate(task.tokens)}
        self.ids = torch.tensor([[numbers[t] for t in s] + [0] * (n - len(s)) for s in sentences])
        self.is_padding = torch.arange(n) >= torch.tensor([[len(s)] for s in sentences])
        self.labels = torch.tensor([task.labels.index(example.label) for example in examples])
        gold = [task.gold_merges(s) for s in sentences]
        self.merges = torch.tensor([positions + [-1] * (n - 1 - len(positions)) for positions in gold])


@pytest.fixture(scope="module")
def batches() -> tuple[list[Batch], Batch, float]:
    """Training batches, unseen examples, and the loss of the constant that knows the training labels."""
    examples = sample_expressions(STEPS * BATCH // 2 + HELD_OUT, seed=3, min_length=4, max_length=8)
    unseen, seen = examples[:HELD_OUT], sorted(examples[HELD_OUT:], key=lambda e: len(e.sentences[0]))
    counts = Counter(example.label for example in seen)
    constant = -sum(math.log(counts[example.label] / len(seen)) for example in unseen) / len(unseen)
    return [Batch(seen[i : i + BATCH]) for i in range(0, len(seen), BATCH)], Batch(unseen), constant


def logits_of(encoder: nn.Module, embedding: nn.Module, head: nn.Module, batch: Batch) -> Tensor:
    merges = {"merges": batch.merges} if getattr(encoder, "needs_merges", False) else {}
    return head(encoder(embedding(batch.ids), key_padding_mask=batch.is_padding, **merges))


@pytest.mark.slow
@pytest.mark.parametrize("name", encoder_names())
def test_two_hundred_steps_beat_a_constant_answer(name, batches):
    training, unseen, constant = batches
    torch.manual_seed(0)
    encoder = create_encoder(name, D, dropout=0.1, **OPTIONS.get(name, {}))
    embedding, head = nn.Embedding(17, D), nn.Linear(D, 10)
    parts = nn.ModuleList([encoder, embedding, head])
    optimizer = torch.optim.AdamW(parts.parameters(), lr=5e-3)
    order = [i for _ in range(2) for i in torch.randperm(len(training)).tolist()]
    for i in order[:STEPS]:
        loss = F.cross_entropy(logits_of(encoder, embedding, head, training[i]), training[i].labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parts.parameters(), 5.0, error_if_nonfinite=True)
        optimizer.step()
    parts.eval()
    with torch.no_grad():
        loss = F.cross_entropy(logits_of(encoder, embedding, head, unseen), unseen.labels)
    assert float(loss) < constant - 0.1, f"{float(loss):.3f} against {constant:.3f}"
