"""Forecasts of what a study takes: memory, time, disk and GPU hours."""
