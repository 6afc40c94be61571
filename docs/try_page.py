"""The site's page to try beamtree on: the explorer with a dozen recorded searches, in one file.

mkdocs calls `on_files` when it builds the site; `python docs/try_page.py FILE` writes the page alone.
"""

import sys
from pathlib import Path
from typing import Any

from beamtree import load_model
from beamtree.explorer.pages import view_lines, write_page

NAME = "try.html"
TEXTS = {
    "listops-ebt-grc": [
        "[MAX 2 9 [MIN 4 7 ] 0 ]",
        "[SM 4 [MAX 2 9 [MIN 4 7 ] 0 ] [MED 1 8 5 ] ]",
        "[MAX 2 9 4 7 0 ]",
        "[SM 9 9 9 ]",
        "[MED 3 [SM 8 7 ] [MIN 6 2 ] ]",
        "[MIN [MAX 1 5 ] [MAX 4 [SM 6 6 ] ] 7 ]",
        "[SM [SM [SM 1 1 ] 1 ] 1 ]",
        "[MED [MIN 8 [MAX 3 6 ] ] 2 [SM 5 5 5 ] 9 [MED 0 7 ] ]",
    ],
    "logic-ebt-grc": [
        "( a ( and b ) )\ta",
        "( not ( a ( or b ) ) )\t( ( not a ) ( and ( not b ) ) )",
        "( c ( and ( not d ) ) )\t( d ( and ( not c ) ) )",
        "( a ( or b ) )\t( ( not a ) ( or c ) )",
    ],
}


def make_page() -> str:
    records = [
        record for name, texts in TEXTS.items() for record in view_lines(load_model(name), texts, name=name)
    ]
    return "\n".join(write_page(records, "Try beamtree", opens_story=True))


def on_files(files: Any, config: Any) -> Any:
    """Of mkdocs: the page is one of the site's files, so that others may link to it."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, NAME, content=make_page()))
    return files


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(make_page(), encoding="utf-8")
