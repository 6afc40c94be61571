"""Tasks and their data.

`task.py` says what a task is; `listops/`, `logic.py`, `filters/`, `corpora/` and `own.py` are tasks.
`rows.py`, `tokenizers.py` and `bracketed.py` read texts; `words.py`, `vocabulary.py`, `vectors.py`,
`hugging_face.py` and `batching.py` make numbers of them; `folders.py` finds files.
"""
