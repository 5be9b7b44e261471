"""A program for test_ranks.py: runs and the base one after the other in one process, which is a rank.

    python -m tests.integration.runs_in_turn '[["seed=1", "sampler=vllm", …], …]' [base]

The last run is measured, and so is the base where it is named, as if each rank had a machine of its own.
"""

import json
import os
import sys

import torch

from tepo.config.compose import compose
from tepo.jobs.job import Job
from tepo_cli.train_run import run_base

if __name__ == "__main__":
    torch.set_num_threads(1)
    configs = [compose(words) for words in json.loads(sys.argv[1])]
    for config in configs:
        job = Job(config, evaluate=config is configs[-1], quiet=True)
        if (rows := job.train()) is not None:
            job.measure(rows)
    if sys.argv[2:] == ["base"]:
        os.environ["LOCAL_WORLD_SIZE"] = "1"
        run_base(configs[-1], quiet=True)
