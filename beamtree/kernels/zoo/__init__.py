"""Kernels of the paper's other models."""
