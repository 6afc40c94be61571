"""Reliability checks: each makes trials, and a Tally counts the results of one kind of trial."""

from dataclasses import dataclass, field

RECIPE = """
[task]
sampled = { train = 40, dev = 12, max_length = 12 }
[model]
encoder = "ebt-grc"
d_model = 8
embedding_size = 6
classifier_hidden = 8
options = { beam_size = 2 }
[training]
batch_size = 8
micro_batch_size = 4
max_epochs = 3
patience = 10
plateau_patience = 0
learning_rate = 0.2
selection = "accuracy"
"""


@dataclass
class Tally:
    name: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def note(self, right: bool, what: str) -> None:
        self.tried += 1
        if not right:
            self.failures.append(what)
            if len(self.failures) <= 20:
                print(f"FAILED {self.name}: {what}", flush=True)

    def __str__(self) -> str:
        return f"{self.name}: {self.tried:,} tried, {len(self.failures)} failed"
