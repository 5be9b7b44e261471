"""Warm-started models of the laptop scale."""
