"""Published corpora, read from their own files."""
