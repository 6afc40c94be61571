"""`python -m beamtree.cli`."""

from beamtree.cli import main

main()
