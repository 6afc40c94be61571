"""From a recipe to a trained and evaluated model.

`recipe.py` has the settings, `examples.py` the data; `fit.py` is the training loop, `run.py` its state,
`run_folder.py` and `checkpoint.py` what is saved; `schedule.py` decides when it ends, and `evaluate.py`
measures the model that is kept.
"""
