"""Blocks as folders: config, weights, model card, hub."""
