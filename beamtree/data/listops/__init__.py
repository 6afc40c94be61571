"""ListOps: its language, random process, draws and files."""

from beamtree.data.listops.draws import generate_listops, sample_expressions
from beamtree.data.listops.splits import TASK, read, read_file

__all__ = ["TASK", "generate_listops", "read", "read_file", "sample_expressions"]
