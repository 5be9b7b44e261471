"""Adapters for other people's trainers, a module each. A module imports its peer, so import it by its own name."""
