"""`beamtree compare`: models of equal size on one task, inside and far outside training.

`contest.py` defines what is compared and by which rules, `work.py` trains, `outcome.py` stores the outcome of
a run, `page.py` makes the table and the picture from stored outcomes.
"""
