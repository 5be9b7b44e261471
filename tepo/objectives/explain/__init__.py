"""Objectives as formulas and in words."""
