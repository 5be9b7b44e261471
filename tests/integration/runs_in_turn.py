"""A program for the tests: runs one after the other in one process, alone or as a rank.

    python -m tests.integration.runs_in_turn '[["seed=1", "sampler=vllm", …, "MEASURED"], …]'

Words in capitals are of this program: the run is MEASURED; rollouts are drawn IN TURN with the updates and not beside
them.
"""

import json
import sys

import torch

from tepo.config.compose import compose
from tepo.jobs.job import RunJob
from tepo.training import setup
from tepo.training.rollout.rollout_source import Rollouts
from tepo.training.run import Run

MEASURED, IN_TURN = "MEASURED", "IN TURN"

if __name__ == "__main__":
    torch.set_num_threads(1)
    beside = setup.open_rollouts
    for words in json.loads(sys.argv[1]):
        config = compose([word for word in words if word not in (MEASURED, IN_TURN)])
        setup.open_rollouts = (lambda *given: Rollouts(*given[1:5])) if IN_TURN in words else beside
        job = RunJob(Run(config), evaluate=MEASURED in words, quiet=True)
        if (rows := job.train()) is not None:
            job.measure(rows)
