"""Gradients of beams → derivatives."""
