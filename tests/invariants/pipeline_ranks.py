"""Two gloo ranks take two updates on one rollout, each with its share, of objectives that reach every function.
Run by test_pipeline.py with torchrun's variables."""

import sys

import torch

from tepo.training.distributed.process_group import start
from tests.invariants.pipeline import make_groups, run
from tests.invariants.rows import covering


def main(target: str) -> None:
    """Write {label: (gradients, metrics)}."""
    torch.set_num_threads(1)
    comm = start(torch.device("cpu"))
    groups = make_groups()
    found = {label: run(one, groups, 40, torch.float64, comm)[:2] for label, one in covering().items()}
    if comm.rank == 0:
        torch.save(found, target)


if __name__ == "__main__":
    main(sys.argv[1])
