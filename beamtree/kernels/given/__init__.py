"""Trees that are given, composed level by level."""
