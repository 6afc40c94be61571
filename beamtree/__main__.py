"""`python -m beamtree`: the command line."""

from beamtree.cli import main

main()
