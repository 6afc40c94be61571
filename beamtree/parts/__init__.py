"""The learned parts of a search, cell and scorer: what the engine reads on a CPU and on a GPU."""
