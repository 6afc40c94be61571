"""`python -m beamtree.cli.demo`: a walk through the commands that a user would type.

Evaluates the shipped models on newly drawn expressions and formulas, and draws trees.
"""

import shlex
import tempfile
from pathlib import Path

from rich.console import Console

from beamtree.cli import app
from beamtree.data.listops import sample_expressions
from beamtree.data.logic import generate_logic
from beamtree.files.atomic import replace_file

SHIPPED = "listops-ebt-grc"
LOGIC = "logic-ebt-grc"
EXPRESSIONS = ("[MAX 2 9 [MIN 4 7 ] 0 ]", "[SM 1 [MAX 3 8 ] [MED 5 0 9 ] ]")
FORMULAS = ("( a ( and b ) )", "( a ( or ( not b ) ) )")
LENGTHS = {"4-100": (4, 100), "200-300": (201, 299)}
PAIRS = 30_000  # of formulas to draw: enough for every split to have some
SEED = 20_000  # no recipe draws its data with this one


def run_demo(*, examples: int = 300) -> None:
    """Evaluate on short expressions, on longer ones and on formulas; draw trees."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, (shortest, longest) in LENGTHS.items():
            drawn = sample_expressions(examples, seed=SEED, min_length=shortest, max_length=longest)
            lines = [f"{example.label}\t{' '.join(example.sentences[0])}\n" for example in drawn]
            replace_file(folder / f"{name}.tsv", "".join(lines))
        _say("Newly drawn expressions. Bracketing F1 and exact compare the trees found with the true ones.")
        _call("eval", SHIPPED, *(str(folder / f"{name}.tsv") for name in LENGTHS))
        _call("parse", SHIPPED, *EXPRESSIONS)
        generate_logic(folder / "logic", seed=SEED, pairs=PAIRS)
        _say("Formulas. Nearly all answers are right, with trees unlike the written ones: low bracketing F1.")
        _call("eval", LOGIC, "--data", str(folder / "logic"), "--split", "test7", "--split", "test10")
        _call("parse", LOGIC, *FORMULAS)


def _say(sentence: str) -> None:
    Console().print(f"\n{sentence}", style="italic", markup=False, highlight=False)


def _call(*arguments: str) -> None:
    Console().print(f"\n$ beamtree {shlex.join(arguments)}", style="bold", markup=False, highlight=False)
    app(arguments, prog_name="beamtree", standalone_mode=False)


if __name__ == "__main__":
    run_demo()
