"""Hostile inputs: parsers, readers, brackets, given trees, pinned spans, masks and activations.

Text must be read or refused with a BeamtreeError, a tensor with a ValueError that names the argument.
Whatever is read must be complete: n−1 merges, brackets that can be read again, as many records as lines.
"""

import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from beamtree import BeamTreeEncoder
from beamtree.classifier.model import ModelSettings, create_model
from beamtree.classifier.parsing import parse_lines
from beamtree.cli.formats import as_brackets, as_json
from beamtree.data.task import TASKS, find_task
from beamtree.errors import BeamtreeError
from beamtree.printable import printable
from beamtree.trees.brackets import merges_from_brackets
from beamtree.trees.constraints import check_merges
from tools.trust import Tally, spoil
from tools.trust.spoil import hostile_value, spoil_bytes

SHORT = {"cases": 150, "tokens": 50_000}


def run(folder: Path, *, cases: int = 2600, tokens: int = 1_000_000, seed: int = 0) -> list[Tally]:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    checks: dict[str, Callable[[random.Random], str | None]] = {
        "ListOps expressions": lambda draw: expressions(draw, "listops"),
        "logic formulas": lambda draw: expressions(draw, "logic"),
        "data files": lambda draw: data_file(draw, folder),
        "lines to parse": lines,
        "brackets": brackets,
        "merges=": merges,
        "pinned_spans=": pinned_spans,
        "masks and activations": activations,
    }
    tallies = []
    for name, check in checks.items():
        tally = Tally(name)
        for _ in range(cases):
            try:
                problem = check(draw)
            except Exception as error:
                problem = f"{type(error).__name__}: {str(error)[:300]}"
            tally.note(problem is None, str(problem))
        print(tally, flush=True)
        tallies.append(tally)
    tallies.append(long_lines(tokens))
    print(tallies[-1], flush=True)
    return tallies


def _text(draw: random.Random, sound: Callable[[random.Random], str]) -> str:
    return spoil.soup(draw) if draw.random() < 0.3 else spoil.stirred(draw, sound(draw))


def expressions(draw: random.Random, name: str) -> str | None:
    task = find_task(name)
    text = _text(draw, spoil.expression if name == "listops" else spoil.formula)
    try:
        tokens = task.tokenize(text)
    except BeamtreeError as error:
        return None if 0 < len(str(error)) < 400 else f"{text!r}: {error}"
    return _whole_tree(task.gold_merges(tokens) if task.gold_merges else [], len(tokens), text)


def _whole_tree(found: list[int], n: int, text: str) -> str | None:
    check_merges(torch.tensor([found], dtype=torch.int64).reshape(1, -1), torch.tensor([n]), n=n)
    return None if len(found) == n - 1 else f"{text!r} gives {len(found)} merges of {n} tokens"


def data_file(draw: random.Random, folder: Path) -> str | None:
    """Read a data file of a random task, often with damaged bytes."""
    name = draw.choice(tuple(TASKS))
    path = folder / f"{name}{draw.choice(['.tsv', '.tsv', '.txt', '.jsonl', '.tsv.gz', '.tsv.xz'])}"
    content = "\n".join(_row(draw, name) for _ in range(draw.randrange(6))).encode(errors="surrogatepass")
    path.write_bytes(spoil_bytes(draw, content) if draw.random() < 0.7 else content)
    try:
        examples = list(find_task(name).read_file(path))
    except BeamtreeError as error:
        return None if path.name in str(error) else f"{path.name} is not named: {error}"
    finally:
        path.unlink()
    whole = all(all(example.sentences) for example in examples)
    return None if whole else f"{name}: an example without words"


def _row(draw: random.Random, name: str) -> str:
    one, other = spoil.expression(draw), spoil.formula(draw)
    rows = {"listops": f"{draw.randrange(10)}\t{one}", "logic": f"{draw.choice('=<>^|v#')}\t{other}\t{other}"}
    languages = [
        "label\tsentence\tpremise\thypothesis\ttext\tquestion1\tquestion2\tis_duplicate\tgold_label",
        "entailment\ta b\tc d\te f\tg\th\ti\t1\tneutral",
        "(3 (2 It) (4 (2 's) (3 good)))",
        '{"gold_label": "neutral", "sentence1": "a", "sentence2": "b"}',
    ]
    return spoil.stirred(draw, rows.get(name) or draw.choice(languages))


@cache
def _model(task: str) -> Any:
    settings = ModelSettings(
        "ebt-grc", d_model=4, embedding_size=4, classifier_hidden=4, options={"beam_size": 2}
    )
    return create_model(settings, find_task(task)).eval()


def lines(draw: random.Random) -> str | None:
    """Parse lines with a tiny model, as `beamtree parse` does."""
    name, sound = draw.choice([("listops", spoil.expression), ("logic", _pair)])
    given = [_text(draw, sound).replace("\n", " ") for _ in range(2)]
    records = parse_lines(_model(name), given, max_length=40)
    written = [show(record, beams=True) for record in records for show in (as_json, as_brackets)]
    if len(records) != 2 or any(printable(text) != text.replace("\t", "\\t") for text in written):
        return f"{given!r} gives {len(records)} records, {written!r}"
    return None


def _pair(draw: random.Random) -> str:
    return f"{spoil.formula(draw)}\t{spoil.formula(draw)}"


def brackets(draw: random.Random) -> str | None:
    text = _text(draw, spoil.tree)
    given: Any = text if draw.random() < 0.7 else text.replace("(", "( ").replace(")", " )").split()
    try:
        tokens, found = merges_from_brackets(given)
    except BeamtreeError:
        return None
    return _whole_tree(found, len(tokens), text)


@cache
def _encoder() -> Any:
    torch.manual_seed(0)
    return BeamTreeEncoder(4, beam_size=3).eval()


def _batch(draw: random.Random) -> tuple[Any, Any]:
    B, n = draw.randint(1, 3), draw.randint(1, 7)
    lengths = torch.tensor([draw.randint(1, n) for _ in range(B)])
    return torch.randn(B, n, 4), torch.arange(n) >= lengths[:, None]


def _refused_by_name(action: Callable[[], Any], name: str, given: Any) -> str | None:
    """Return None if the action succeeds or a ValueError names the argument."""
    try:
        action()
    except ValueError as error:
        return None if name in str(error) and len(str(error)) < 2000 else f"{given!r:.300}: {error!r:.300}"
    except Exception as error:
        return f"{given!r:.300}: {type(error).__name__}: {str(error)[:200]}"
    return None


def merges(draw: random.Random) -> str | None:
    x, mask = _batch(draw)
    B, n = mask.shape
    given: Any = torch.tensor(
        [[draw.randint(-2, n) for _ in range(n - 1)] for _ in range(B)], dtype=torch.int64
    )
    given = given.reshape(B, n - 1)
    if draw.random() < 0.5:  # a valid tree, sometimes with one wrong number
        left = (~mask).sum(1)
        for t in range(n - 1):
            high = (left - t - 2).tolist()
            given[:, t] = torch.tensor([draw.randint(0, top) if top >= 0 else -1 for top in high])
        if draw.random() < 0.5 and given.numel():
            given.view(-1)[draw.randrange(given.numel())] = draw.choice([-2, -1, 0, n, 2**62, -(2**63)])
    elif draw.random() < 0.3:
        given = draw.choice(
            [given.float(), given.int(), given[:, None], given.tolist(), given[:1, :0], 5, "x"]
        )
    return _refused_by_name(lambda: _encoder()(x, mask, merges=given, need_trees=True), "merges", given)


def pinned_spans(draw: random.Random) -> str | None:
    x, mask = _batch(draw)
    B, n = mask.shape

    def end() -> int:
        return draw.choice([draw.randint(0, n), draw.randint(0, n), -1, n + 1, 2**62, 2**70])

    given: Any = [[(end(), end()) for _ in range(draw.randrange(3))] for _ in range(B)]
    match draw.randrange(8):
        case 0:
            given = hostile_value(draw)
        case 1:
            given = [hostile_value(draw) for _ in range(B)]
        case 2:
            given = [[hostile_value(draw)] for _ in range(B)]
        case 3:
            sizes = draw.choice([(B, 2, 2), (B, 0, 2), (B, 2), (B + 1, 1, 2), (B, 1, 3)])
            given = torch.randint(-2, n + 2, sizes, dtype=draw.choice([torch.int64, torch.int32]))
    if given is None:
        return None
    return _refused_by_name(lambda: _keep_pins(x, mask, given), "pinned_spans", given)


def _keep_pins(x: Any, mask: Any, given: Any) -> None:
    trees = _encoder()(x, mask, pinned_spans=given, need_trees=True)[1]
    for b, spans in enumerate(given if isinstance(given, list) else ()):
        found = set(map(tuple, trees.span_sets(b, 0)))
        for start, end in spans:
            assert end - start <= 1 or (start, end) in found, f"{(start, end)} is not in the tree of {b}"


def activations(draw: random.Random) -> str | None:
    x, mask = _batch(draw)
    B, n = mask.shape
    b, i, kind = draw.randrange(B), draw.randrange(n), draw.randrange(8)
    value = draw.choice([float("nan"), float("inf"), -float("inf")])
    if kind == 0:  # values in padding must have no effect
        expected = _encoder()(x, mask)
        x[mask] = value
        return None if torch.equal(_encoder()(x, mask), expected) else "padding has an effect"
    wanted = "x"
    if kind == 1:
        mask[b] = True
        wanted = "key_padding_mask"
    elif kind == 2:
        x[b, 0, draw.randrange(4)] = value
    elif kind == 3 and n > 1:
        mask[b, -1], mask[b, 0] = False, True
        wanted = "key_padding_mask"
    elif kind == 4:
        mask = draw.choice([mask.float(), mask[:, :-1], mask[:1].expand(B + 1, n), mask.tolist(), mask[0]])
        wanted = "key_padding_mask"
    elif kind == 5:
        x = draw.choice([x.double(), x[..., :3], x[0], x.int(), x.tolist(), x[:, :0], None, x.to_sparse()])
        mask = None
    elif kind == 6:
        x[b, i] = draw.choice([1e15, -1e15, 1e-45])
        out = _encoder()(x, mask)
        return None if out.isfinite().all() else "finite activations give a root that is not finite"
    else:
        return None if _encoder()(x, mask).isfinite().all() else "not finite"
    try:
        _encoder()(x, mask)
    except ValueError as error:
        return None if wanted in str(error) else f"{wanted} is not named: {error}"
    return f"{wanted} was accepted, kind {kind}"


def long_lines(tokens: int) -> Tally:
    """Lines of this many tokens must be read or refused in seconds of one core, for any depth of nesting."""
    tally = Tally(f"lines of {tokens:,} tokens")
    readers: dict[str, Callable[[str], Any]] = {
        "listops": find_task("listops").tokenize,
        "logic": find_task("logic").tokenize,
        "brackets": merges_from_brackets,
        "parse": lambda text: parse_lines(_model("listops"), [text]),
    }
    for what, text in spoil.endless(tokens).items():
        for name, reader in readers.items():
            began = time.process_time()
            problem = ""
            try:
                reader(text)
            except BeamtreeError as error:
                problem = "" if len(str(error)) < 2000 else f"a message of {len(str(error)):,} characters"
            except Exception as error:
                problem = f"{type(error).__name__}: {str(error)[:200]}"
            seconds = time.process_time() - began
            tally.note(not problem and seconds < 20, f"{what} to {name}: {problem or f'{seconds:.1f} s'}")
    return tally
