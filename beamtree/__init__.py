"""Neural networks that find a tree in a sequence by themselves."""

__version__ = "0.1.0"
