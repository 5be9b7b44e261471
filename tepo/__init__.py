"""Regenerate the tables of TEPO and GTPO / GRPO-S from declarative experiments, at two scales."""

__version__ = "0.1.0"
