"""One command a file; heavy imports stand inside the functions, so that `--help` is quick."""
