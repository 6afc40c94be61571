"""The tree explorer shows what a model does with one input, step by step, as JSON and as a web page."""
