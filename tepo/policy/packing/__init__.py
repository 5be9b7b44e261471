"""Sequences packed into micro-batches."""
