"""Rollouts: prompts in, groups of responses with rewards out."""
