"""A program for the tests: runs one after the other in one process, alone or as a rank.

    python -m tests.integration.runs_in_turn '[["seed=1", "sampler=vllm", …, "IN TURN"], …]'

IN TURN: rollouts are drawn in turn with the updates and not beside them.
"""

import json
import sys

import torch

from tepo.config.compose import compose
from tepo.training import setup
from tepo.training.loop import train
from tepo.training.rollout.rollout_source import Rollouts
from tepo.training.run import Run

IN_TURN = "IN TURN"

if __name__ == "__main__":
    torch.set_num_threads(1)
    beside = setup.open_rollouts
    for words in json.loads(sys.argv[1]):
        setup.open_rollouts = (lambda *given: Rollouts(*given[1:5])) if IN_TURN in words else beside
        train(Run(compose([word for word in words if word != IN_TURN])))
