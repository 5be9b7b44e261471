"""Intervals, comparisons, equivalence, power and scaling fits."""
