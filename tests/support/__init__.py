"""Builders that many tests share: a run, its results and answers, a store, claims, tiny models, commands as typed."""
