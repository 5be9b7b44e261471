"""Rewards of a user's own, in processes that may be killed."""
