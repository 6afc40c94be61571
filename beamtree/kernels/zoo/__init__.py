"""Kernels for the paper's other models."""
