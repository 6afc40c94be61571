"""The recipes that come with beamtree: one file per task, and models.toml with the models of the tables.

`listops-om` is listops.toml with the model `om` of models.toml, changed by what listops.toml says about om
under [rows].
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from beamtree.files.settings import Table, merge_tables, read_toml

_HERE = Path(__file__).resolve().parent
NO_SETTINGS = ("about", "rows")  # of a task's file: what it is, and the other models of its tables


class Shipped(NamedTuple):
    about: str  # one line
    settings: Table


@cache
def shipped_recipes() -> dict[str, Shipped]:
    """All recipes that come with beamtree, by name."""
    files = {path.stem: read_toml(path) for path in _HERE.glob("*.toml")}
    models = files.pop("models")
    found = {name: Shipped(table["about"], _settings(name, files)) for name, table in files.items()}
    for task, table in files.items():
        for row, changes in table.get("rows", {}).items():
            model = {"encoder": row, **models[row]}
            about = model.pop("about")
            settings = put_on_top(put_on_top(found[task].settings, {"model": model}), changes)
            found[f"{task}-{row}"] = Shipped(about, settings)
    return dict(sorted(found.items()))


def _settings(name: str, files: dict[str, Table]) -> Table:
    own = {key: value for key, value in files[name].items() if key not in (*NO_SETTINGS, "extends")}
    base = files[name].get("extends")
    return own if base is None else put_on_top(_settings(base, files), own)


def put_on_top(base: Table, over: Table) -> Table:
    """Merge `over` into `base`. If the encoder changes, the options of the old one are dropped."""
    merged = merge_tables(base, over)
    old, new = base.get("model"), over.get("model")
    if (
        isinstance(old, dict)
        and isinstance(new, dict)
        and new.get("encoder", old.get("encoder")) != old.get("encoder")
    ):
        merged["model"] = {**merged["model"], "options": new.get("options", {})}
    return merged
