"""Tasks and their data.

`task.py` defines what a task is; `listops/`, `logic.py` and `filters.py` (all on `formal.py`), `corpora.py`
and `own.py` are tasks. `rows.py`, `unlabelled.py` and `tokenizers.py` read texts; `words.py`,
`vocabulary.py`, `vectors.py`, `hugging_face.py` and `batching.py` turn them into numbers; `folders.py` finds
files.
"""
