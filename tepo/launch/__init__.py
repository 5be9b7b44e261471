"""Where units run: processes of this machine, or Slurm jobs."""
