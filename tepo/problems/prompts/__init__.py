"""Surroundings of a statement: chat templates, rendered apart, and control tokens."""
