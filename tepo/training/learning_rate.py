"""The learning rate of a step: a linear warm-up (`train.warmup_steps`), then constant."""

from tepo.config.run_config import TrainConfig


def scheduled_learning_rate(train: TrainConfig, step: int) -> float:
    """Learning rate of a step, counted from 1; no warm-up where `warmup_steps` is 0."""
    return train.learning_rate * (min(1.0, step / train.warmup_steps) if train.warmup_steps else 1.0)
