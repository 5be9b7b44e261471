"""Checkpoints and final models, written."""
