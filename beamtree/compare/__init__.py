"""Models of equal size on one task, inside and far outside training: what `beamtree compare` does.

`contest.py` says what is compared and by which rules, `work.py` trains it, `outcome.py` keeps what came of a
run, `page.py` makes the table and the picture of kept runs.
"""
