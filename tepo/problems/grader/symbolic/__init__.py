"""Expressions through sympy and math-verify. Imported by worker processes only."""
