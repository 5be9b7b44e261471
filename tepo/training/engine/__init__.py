"""Engines, which hold the weights and step the optimizer."""
