"""Layers and models as folders: config, weights, model card, hub."""
