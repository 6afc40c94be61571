"""Logical inference: its language, files and draws."""

from beamtree.data.logic.task import TASK, generate_logic, read, read_file

__all__ = ["TASK", "generate_logic", "read", "read_file"]
