"""ListOps: its language, draws and splits."""
