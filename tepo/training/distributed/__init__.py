"""Ranks of a run: collectives, liveness, lost ranks."""
