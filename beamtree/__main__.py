"""Runs the command line: `python -m beamtree`."""

from beamtree.cli import main

main()
