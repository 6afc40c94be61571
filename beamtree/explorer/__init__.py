"""The tree explorer: what a model does with one input, step by step, as JSON and as a page."""
