"""Answers that are one number."""
