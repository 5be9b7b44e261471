"""A clock in place of the GPUs of a training step. Its command is `python -m perf.simulate_step`."""
