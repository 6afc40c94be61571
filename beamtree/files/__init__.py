"""Reading and writing files: atomic writes, bounded reads, tensors, and settings tables as dataclasses."""
