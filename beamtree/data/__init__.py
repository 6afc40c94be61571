"""Tasks and their data.

`task.py` says what a task is; `listops/`, `logic.py` and `filters.py` (all on `formal.py`), `corpora.py` and
`own.py` are tasks. `rows.py` and `tokenizers.py` read texts; `words.py`, `vocabulary.py`, `vectors.py`,
`hugging_face.py` and `batching.py` make numbers of them; `folders.py` finds files.
"""
