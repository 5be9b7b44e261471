"""The sampler inside the trainer's process."""
