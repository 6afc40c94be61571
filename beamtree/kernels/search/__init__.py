"""Leaves → beams."""
