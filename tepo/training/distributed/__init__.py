"""Ranks of a run: collectives, heartbeat, lost ranks."""
