"""A trained classifier: its folder, predictions, exports, and the weights in the package."""
