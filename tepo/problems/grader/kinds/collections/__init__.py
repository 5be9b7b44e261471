"""Answers that are several values."""
