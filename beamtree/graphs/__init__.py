"""CUDA graphs of single steps and of whole passes; the recursion with a user's own cell, and its graphs."""
