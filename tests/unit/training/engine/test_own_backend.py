from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.planning.fit import fit
from tepo.planning.gpus import machines
from tepo.sampling import backends as samplers
from tepo.training.engine import backends as engines
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import COPYING, assert_same_run, own_backends, tiny

SAMPLER = (
    COPYING.format(remote=False)
    + '''

class Copied(Backend):
    """It decodes a GiB a row."""

    def memory(self, config, shape, room):
        return SamplerMemory(config.sampler.max_rows * 2.0**30, config.sampler.max_rows * 2.0**30)

    def remedies(self, config):
        return ["sampler.max_rows=4"]


BACKEND = Copied()
'''
)
ENGINE = '''
"""The embedded engine under another name, for at most two ranks, with an optimiser that needs twice the room."""
from contextlib import nullcontext

from tepo.common.errors import UserError
from tepo.training.engine.backends import EngineMemory
from tepo.training.engine.torch_engine import TorchEngine


class Backend:
    shares_weights = several_ranks = True
    packages = {}

    def check_settings(self, config, ranks):
        if ranks > 2 or config.engine.offload:
            raise UserError("doubled trains on two ranks without offload", where="engine", fix="engine=deepspeed")

    def check_available(self, config):
        pass

    def loading(self, config, source, device):
        return nullcontext()

    def open(self, config, policy):
        return TorchEngine(policy.model, config.train)

    def memory(self, config, shape, ranks, node_ranks):
        return EngineMemory(2.0 * shape.parameters, 4.0 * shape.parameters, 24.0 * shape.parameters / ranks)

    def remedies(self, config):
        return ["engine.kind=deepspeed"]


BACKEND = Backend()
'''
BY_NAME = {machine.name: machine for machine in machines()}


@pytest.fixture(autouse=True)
def own(tmp_path: Path) -> Iterator[None]:
    """`sampler=copied` and `engine=doubled`, added as files."""
    with own_backends(tmp_path, (samplers, "sampler", "copied", SAMPLER), (engines, "engine", "doubled", ENGINE)):
        yield


def test_they_train(tmp_path: Path) -> None:
    """To the same weights as the ones they are made of: the sampler's copy gets every update."""
    usual = train(Run(tiny(tmp_path / "runs", "train.steps=2")))
    folder = train(Run(tiny(tmp_path / "runs", "train.steps=2", "sampler=copied", "engine=doubled")))
    assert folder != usual
    assert_same_run(folder, usual)


def test_they_are_planned_by_what_they_declare() -> None:
    copied = compose(["scale=paper", "sampler=copied", "sampler.max_rows=64", "engine.offload=false"])
    found = fit(Run(copied), BY_NAME["8 H100"])
    assert found.memory.sampler == found.memory.cache == 64 * 2**30
    assert "sampling needs" in found.problem
    assert found.changes == ("sampler.max_rows=4",)
    doubled = Run(compose(["scale=paper", "engine=doubled"]))
    assert fit(doubled, BY_NAME["1 H100"]).memory.optimiser == 24 * doubled.shape.parameters
    found = fit(doubled, BY_NAME["8 H100"])
    assert found.problem == "doubled trains on two ranks without offload"
    assert found.changes == ("engine.kind=deepspeed",)
