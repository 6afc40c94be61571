"""Runs a model on lines of text, a chunk at a time; a line that cannot be read becomes an error record."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from beamtree.classifier.classifier import Classifier
from beamtree.classifier.inference import BATCH_TOKENS, predict_in_batches
from beamtree.data.task import Example, Task, Tokens
from beamtree.data.unlabelled import TextRow
from beamtree.errors import BeamtreeError
from beamtree.files.lines import in_blocks
from beamtree.trees.beam_trees import BeamTrees
from beamtree.trees.brackets import write_brackets

CHUNK_LINES = 512  # sorted by length together; only one chunk is in memory at a time
MAX_LENGTH = 10_000


@dataclass(frozen=True)
class SentenceTrees:
    """A sentence and its trees, kept in their batch, which computes the structure of all trees at once."""

    tokens: Tokens
    batch: BeamTrees
    index: int
    left_out: int = 0  # tokens in the middle of a long text that its trees do not cover

    def alone(self) -> BeamTrees:
        return self.batch[self.index]

    def brackets(self, beam: int = 0) -> str:
        return write_brackets(self.tokens, self.batch.span_sets(self.index, beam))


@dataclass(frozen=True)
class Parsed:
    """A line with the model's prediction and its trees, if it builds any."""

    line: int  # from 1
    text: str
    label: str
    probability: float
    trees: tuple[SentenceTrees, ...]  # one per sentence
    unknown: tuple[str, ...] = ()  # tokens that are not in the vocabulary, each once
    probabilities: tuple[float, ...] = ()  # of all labels of the task


@dataclass(frozen=True)
class Unparsed:
    """A line that could not be read, and why."""

    line: int
    text: str
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


Record = Parsed | Unparsed


def parse_lines(
    model: Classifier,
    lines: Iterable[str | TextRow],
    *,
    batch_tokens: int = BATCH_TOKENS,
    max_length: int = MAX_LENGTH,
    need_trees: bool = True,
) -> list[Record]:
    """Return one record per line, in order; the sentences of a pair are in one line, separated by a tab."""
    rows = list(numbered(lines))
    records: list[Record | None] = [None] * len(rows)
    places: list[int] = []
    examples: list[Example] = []
    for place, row in enumerate(rows):
        try:
            examples.append(Example(read_sentences(model.task, row, max_length), ""))
            places.append(place)
        except BeamtreeError as error:
            records[place] = Unparsed(row.number, row.line, str(error))
    for batch, probabilities, found in predict_in_batches(
        model, examples, batch_tokens=batch_tokens, need_trees=need_trees
    ):
        trees = (
            None if found is None else found.to("cpu")
        )  # at once: reading single numbers from a GPU is slow
        for b, shares in enumerate(probabilities.tolist()):
            sentences, place = examples[batch[b]].sentences, places[batch[b]]
            tokens = dict.fromkeys(token for sentence in sentences for token in sentence)
            own = []
            if trees is not None:
                for s, sentence in enumerate(sentences):
                    covered = model.in_trees(sentence)
                    left_out = len(sentence) - len(covered)
                    own.append(SentenceTrees(covered, trees, s * len(batch) + b, left_out))
            records[place] = Parsed(
                rows[place].number,
                rows[place].line,
                label=model.task.labels[shares.index(max(shares))],
                probability=max(shares),
                trees=tuple(own),
                unknown=tuple(token for token in tokens if token not in model.vocabulary),
                probabilities=tuple(shares),
            )
    return [record for record in records if record is not None]


def numbered(lines: Iterable[str | TextRow]) -> Iterator[TextRow]:
    """Yield lines as rows, numbered from 1; rows of a file already have their numbers."""
    for number, line in enumerate(lines, start=1):
        yield line if isinstance(line, TextRow) else TextRow(number, line)


def read_sentences(task: Task, row: TextRow, max_length: int = MAX_LENGTH) -> tuple[Tokens, ...]:
    """Split a line into sentences and tokens, as its task demands."""
    line = row.line
    if row.wrong:
        raise BeamtreeError(row.wrong)
    if not line.strip():
        raise BeamtreeError("the line is empty")
    count = line.count("\t") + 1
    if count != task.sentences:
        expected = "one text" if task.sentences == 1 else f"{task.sentences} sentences separated by a tab"
        found = f"{count} column{'s' if count > 1 else ''}"
        raise BeamtreeError(f"expected {expected}, found {found} (labels are not part of the input)")
    sentences = tuple(map(task.tokenize, line.split("\t")))
    for sentence in sentences:
        if len(sentence) > max_length:
            raise BeamtreeError(f"the text has {len(sentence)} tokens, more than --max-length {max_length}")
    return sentences


def parse_stream(
    model: Classifier,
    lines: Iterable[str | TextRow],
    *,
    batch_tokens: int = BATCH_TOKENS,
    max_length: int = MAX_LENGTH,
    need_trees: bool = True,
) -> Iterator[Record]:
    """Yield one record per line, reading one chunk of lines at a time."""
    for chunk in in_blocks(numbered(lines), CHUNK_LINES):
        yield from parse_lines(
            model, chunk, batch_tokens=batch_tokens, max_length=max_length, need_trees=need_trees
        )
