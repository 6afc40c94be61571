"""`python -m beamtree.demo`: the whole way in a few minutes, by the commands that a user would type.

Evaluates the shipped models on expressions and formulas drawn anew and draws trees; while no ListOps model
ships, a recipe of about a minute trains one first.
"""

import shlex
import tempfile
from pathlib import Path

from rich.console import Console

from beamtree.atomic import replace_file
from beamtree.cli import app
from beamtree.data.listops import sample_expressions
from beamtree.data.logic_generate import generate_logic
from beamtree.model import PRETRAINED

SHIPPED = "listops-ebt-grc"
LOGIC = "logic-ebt-grc"
RECIPE = "listops-minute"
EXPRESSIONS = ("[MAX 2 9 [MIN 4 7 ] 0 ]", "[SM 1 [MAX 3 8 ] [MED 5 0 9 ] ]")
FORMULAS = ("( a ( and b ) )", "( a ( or ( not b ) ) )")
PAIRS = 30_000  # of formulas to draw, so that every split has some
SEED = 20_000  # no recipe draws its data with this one


def run_demo(recipe: str = RECIPE, *, examples: int = 300) -> None:
    """Train if need be, evaluate on short and on longer expressions, draw trees."""
    shipped = (PRETRAINED / SHIPPED).is_dir()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = SHIPPED if shipped else str(folder / "run")
        if not shipped:
            _call("train", recipe, "--out", model)
        lengths = (
            {"4-100": (4, 100), "200-300": (201, 299)} if shipped else {"4-9": (4, 9), "10-20": (10, 20)}
        )
        for name, (shortest, longest) in lengths.items():
            drawn = sample_expressions(examples, seed=SEED, min_length=shortest, max_length=longest)
            lines = [f"{example.label}\t{' '.join(example.sentences[0])}\n" for example in drawn]
            replace_file(folder / f"{name}.tsv", "".join(lines))
        _call("eval", model, *(str(folder / f"{name}.tsv") for name in lengths))
        _call("parse", model, *EXPRESSIONS)
        if (PRETRAINED / LOGIC).is_dir():
            generate_logic(folder / "logic", seed=SEED, pairs=PAIRS)
            _call("eval", LOGIC, "--data", str(folder / "logic"), "--split", "test7", "--split", "test10")
            _call("parse", LOGIC, *FORMULAS)


def _call(*arguments: str) -> None:
    Console().print(f"\n$ beamtree {shlex.join(arguments)}", style="bold", markup=False, highlight=False)
    app(arguments, prog_name="beamtree", standalone_mode=False)


if __name__ == "__main__":
    run_demo()
