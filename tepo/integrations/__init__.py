"""Adapters to other packages, a module each. A module imports its peer, so import it by its own name."""
