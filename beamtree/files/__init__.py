"""Files: replaced whole, read with bounds, tensors in them, tables as dataclasses."""
