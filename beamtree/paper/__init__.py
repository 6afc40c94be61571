"""The paper's tables from runs of our own, and its measurements of speed and memory."""
