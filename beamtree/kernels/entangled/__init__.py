"""Search and replay with a score that is read off the parent (BT-GRC, GT-GRC)."""
