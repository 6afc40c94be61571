"""Time and memory of encoders by length, width and beams, and the paper's efficiency table."""
