"""Time and memory of encoders by length, width and beams, and the paper's efficiency table."""

from beamtree.benchmark.memory import peak_growth

__all__ = ["peak_growth"]
