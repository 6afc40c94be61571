"""Trees and operations on them: structure, brackets, agreement with gold trees, drawings and constraints."""
