"""Base modules that every layer may import."""
