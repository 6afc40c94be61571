"""Logical inference: its language and draws."""
