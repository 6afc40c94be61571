"""The three learned parts: cell, scorer, leaf."""
