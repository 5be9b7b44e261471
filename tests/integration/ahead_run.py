"""A program for test_ahead.py: a run as one drawn beside its updates, or in turn.

    python -m tests.integration.ahead_run '[[true, ["train.staleness=1", "sampler=vllm_server", …]], …]'

One run after the other, as a process alone or as a rank. The first of each pair: whether it may draw beside.
"""

import json
import sys

import torch

from tepo.config.compose import compose
from tepo.training import setup
from tepo.training.loop import train
from tepo.training.rollout.rollout_source import Rollouts

if __name__ == "__main__":
    torch.set_num_threads(1)
    beside = setup.open_rollouts
    for overlapped, words in json.loads(sys.argv[1]):
        setup.open_rollouts = beside if overlapped else lambda *given: Rollouts(*given[:4])
        train(compose(words))
