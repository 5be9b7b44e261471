"""Adapters to other packages: each imports nothing of theirs until it is used."""
