"""Checks of an objective: shipped or a user's own."""
