"""Time and memory of encoders by length, width and beams, and the paper's efficiency table."""

from beamtree.paper.speed.memory import peak_growth

__all__ = ["peak_growth"]
