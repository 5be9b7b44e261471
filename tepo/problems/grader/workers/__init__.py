"""Processes that compare expressions under a budget, and may be killed."""
