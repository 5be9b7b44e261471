"""Intervals, comparisons and power."""
