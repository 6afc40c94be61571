"""Checks of what can be relied on: each makes trials, and a Tally says what came of one kind of them."""

from dataclasses import dataclass, field


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
