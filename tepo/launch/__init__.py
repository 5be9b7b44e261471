"""Launching units: processes of this machine, or Slurm jobs."""
