"""From a recipe to a trained model and its figures.

`recipe.py` and `examples.py` say what is learnt by what; `fit.py` is the loop over a `run.py`, in a
`run_folder.py` with its `checkpoint.py`; `schedule.py` ends it, `evaluate.py` measures what is kept.
"""
