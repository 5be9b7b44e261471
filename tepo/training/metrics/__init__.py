"""Metrics of a step and the token dumps."""
