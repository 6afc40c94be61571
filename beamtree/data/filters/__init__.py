"""Filters: nested boolean conditions with their values filled in; their language, draws and files."""

from beamtree.data.filters.draws import generate_filters
from beamtree.data.filters.task import TASK, read, read_file

__all__ = ["TASK", "generate_filters", "read", "read_file"]
