"""Two gloo ranks compute the gradient of every kind and option on their share of one mini-batch.
Run by test_objectives.py with torchrun's variables."""

import sys

import torch
from torch import Tensor

from tepo.objectives import TokenBatch, load_objective
from tepo.objectives.testing.checks import gradient_of_part, prepared_case
from tepo.training.distributed.process_group import TorchComm, start
from tests.invariants.rows import covering


def main(target: str) -> None:
    """Write {composition: gradient by logits, summed over ranks}, and the metrics."""
    torch.set_num_threads(1)
    comm: TorchComm = start(torch.device("cpu"))
    found: dict[str, tuple[Tensor, dict[str, float]]] = {}
    for name, mapping in (covering() | {"tepo": "tepo"}).items():
        objective = load_objective(mapping)
        case, batch = prepared_case(objective)
        count = len(batch.lengths)
        own = (
            list(range(comm.rank, count, comm.world_size))
            if name != "tepo"
            else ([] if comm.rank else list(range(count)))
        )  # one rank without a response
        mine: TokenBatch = batch.select(own)
        plan = objective.prepare(mine, comm=comm, salt=3)
        gradient, metrics = gradient_of_part(objective, case, mine, plan)
        found[name] = comm.all_sum(gradient), metrics.means(comm)
    if comm.rank == 0:
        torch.save(found, target)


if __name__ == "__main__":
    main(sys.argv[1])
