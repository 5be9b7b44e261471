"""Two gloo ranks compute the gradient of a few objectives, which reach every function, on their share of one
mini-batch. Run by test_objectives.py with torchrun's variables."""

import sys

import torch
from torch import Tensor

from tepo.objectives import load_objective
from tepo.objectives.check import SALT, gradient_of_part, prepared_case
from tepo.training.distributed.process_group import TorchComm, start
from tests.invariants.rows import covering


def main(target: str) -> None:
    """Write {label: gradient by logits, summed over ranks}, and the metrics."""
    torch.set_num_threads(1)
    comm: TorchComm = start(torch.device("cpu"))
    found: dict[str, tuple[Tensor, dict[str, float]]] = {}
    for label, objective in (covering() | {"tepo": load_objective("tepo")}).items():
        case, batch = prepared_case(objective)
        count = len(batch.lengths)
        alone = [] if comm.rank else range(count)  # one rank without a response
        mine = batch.select(list(alone if label == "tepo" else range(comm.rank, count, comm.world_size)))
        gradient, metrics = gradient_of_part(objective, case, mine, objective.prepare(mine, comm=comm, salt=SALT))
        found[label] = comm.all_sum(gradient), metrics.means(comm)
    if comm.rank == 0:
        torch.save(found, target)


if __name__ == "__main__":
    main(sys.argv[1])
