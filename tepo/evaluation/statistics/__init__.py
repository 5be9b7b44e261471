"""Intervals, comparisons, equivalence and power."""
