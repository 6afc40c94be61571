"""Straight-through trees (EGT-GRC, GT-GRC)."""
