"""Trees and what can be done with them: structure, brackets, drawings, constraints, agreement."""
