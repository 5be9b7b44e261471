import pytest

from tepo.config.compose import compose
from tepo.planning.fit import fit
from tepo.planning.gpus import machines
from tepo.training import setup
from tepo.training.resources.gpu_cards import H100
from tepo.training.resources.memory import Gpus
from tepo.training.run import Run

EIGHT = next(machine for machine in machines() if machine.name == "8 H100")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    """Eight H100 as a rank sees them, one of them with another process on it."""
    found = Gpus(8, 8, H100.bytes, taken=20e9, card=H100, host=EIGHT.host)
    monkeypatch.setattr(setup, "gpus_here", lambda device: found)
    return found


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen3-14b", "qwen2.5-32b"])
def test_what_is_planned_is_what_is_trained(model: str, gpus: Gpus) -> None:
    """Every rank goes by the cards, whatever else runs on its own."""
    config = compose(["scale=paper", f"model={model}"])
    planned = fit(Run(config), EIGHT)
    chosen, why = setup.laid_out(Run(config))
    assert (chosen.config, why) == (planned.run.config, planned.why)
    assert not setup.is_open(chosen)


def test_a_configuration_that_leaves_nothing_open_asks_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "gpus_here", lambda device: pytest.fail("asked"))
    run = Run(compose())
    assert setup.laid_out(run) == (run, {})


@pytest.mark.vllm
def test_whether_segments_grow_goes_by_the_engine_that_is_chosen(gpus: Gpus) -> None:
    """With an engine over several GPUs they must not (vLLM shares its graph buffers between processes)."""
    for words, grow in (([], False), (["sampler.tensor_parallel=1"], True)):
        chosen, _ = setup.laid_out(Run(compose(["scale=paper", *words])))
        assert chosen.sampler.segments_may_grow(chosen.config) is grow
