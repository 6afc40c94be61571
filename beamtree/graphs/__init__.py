"""CUDA graphs: steps, whole passes, a user's own cell."""
