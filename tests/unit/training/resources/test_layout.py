import itertools

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.planning.fit import fit
from tepo.planning.gpus import machines
from tepo.store.run_folder import RunFolder
from tepo.training import setup
from tepo.training.resources.gpu_cards import GIB, H100
from tepo.training.resources.layout import fill, is_open, with_all, with_share
from tepo.training.resources.memory import Gpus, memory, sequence_bytes
from tepo.training.run import Run

CHOSEN = ("sampler.tensor_parallel", "engine.micro_batch_tokens", "engine.zero_stage")
OPEN = (*CHOSEN, "sampler.max_rows", "model.gradient_checkpointing", "engine.offload")
CLOSED = [f"{key}={value}" for key, value in zip(OPEN, (1, 16384, 2, 256, "true", "false"), strict=True)]
PLAIN = CLOSED[:3]
BY_NAME = {machine.name: machine for machine in machines()}
EIGHT, ONE, CPU = Gpus(8, 8, H100.bytes, card=H100), Gpus(bytes=23.5 * GIB), Gpus()


def choose(config: RunConfig, gpus: Gpus) -> tuple[RunConfig, dict[str, str]]:
    chosen, why = fill(Run(config), gpus)
    return chosen.config, why


@pytest.mark.parametrize(
    ("scale", "gpus", "said"),
    [("paper", CPU, OPEN[3:]), ("single_gpu", ONE, (OPEN[1], *OPEN[3:])), ("paper", EIGHT, OPEN)],
)
def test_what_is_left_open_is_chosen_with_a_reason(scale: str, gpus: Gpus, said: tuple[str, ...]) -> None:
    """Where there is a choice: one GPU has nothing to cut but what is offloaded, and a CPU takes the usual values."""
    config = compose([f"scale={scale}", "engine=deepspeed"])
    found, why = choose(config, gpus)
    assert is_open(Run(config))
    assert not is_open(Run(found))
    assert why.keys() == {*said, *([CHOSEN[2]] if found.engine.offload else [])}
    for key, text in why.items():
        assert text.startswith(f"{str(Run(found).get(key)).lower()}: ")
    assert choose(found, gpus) == (found, {})  # once, and what is given stays


@pytest.mark.parametrize(("name", "model"), [("8 H100", "qwen2.5-32b"), ("8 H200", "qwen3-14b")])
def test_no_layout_that_fits_is_faster_than_the_one_that_is_chosen(name: str, model: str) -> None:
    """By the plan's own figures, each layout given by hand; but for the fiftieth that a setting has to save."""
    config = compose(["scale=paper", f"model={model}"])
    best = fit(Run(config), BY_NAME[name])
    assert not best.problem
    for size, tokens, stage in itertools.product((1, 2, 4, 8), (10240, 16384, 32768), (1, 2, 3)):
        given = Run(config).having(CHOSEN[0], size).having(CHOSEN[1], tokens).having(CHOSEN[2], stage)
        other = fit(Run(given.config), BY_NAME[name])
        assert other.problem or best.time.total <= 1.06 * other.time.total, (size, tokens, stage)


def test_the_samplers_share_is_what_the_trainer_leaves() -> None:
    """All phases fit, and nearly all of the GPU is used while responses are drawn; the cache holds sequences."""
    words, gpus = ["scale=paper", *CLOSED, "engine.zero_stage=3"], Gpus(8, 8, 79 * GIB)
    run, given = Run(compose(words)), Run(compose([*words, "sampler.memory_fraction=0.3"]))
    found = memory(run, gpus)
    assert 0.95 * gpus.bytes < found.sampling <= found.peak < gpus.bytes
    assert found.sampler == pytest.approx(2 * run.shape.parameters + 3.5 * GIB + found.cache)
    share = with_share(run, gpus).config.sampler.memory_fraction
    assert found.sampler - 0.001 * gpus.bytes < share * gpus.bytes <= found.sampler
    assert with_share(given, gpus).config == given.config
    assert memory(given, gpus).sampler == pytest.approx(0.3 * gpus.bytes)


def test_what_others_hold_of_the_gpu_is_taken_off_the_share() -> None:
    """Training and measuring; a sampler without memory of its own asks for none."""
    config, others = compose(["scale=paper", *CLOSED, "sampler.max_rows=9999"]), 2 * GIB
    free, shared = Gpus(8, 8, 79 * GIB), Gpus(8, 8, 79 * GIB, others)
    for share_of in (with_share, with_all):
        alone, beside = (share_of(Run(config), gpus).config.sampler.memory_fraction for gpus in (free, shared))
        assert beside == pytest.approx(alone - 2 / 79, abs=0.002)
    plan = memory(Run(config), shared)
    assert plan.sampling + others < 79 * GIB
    for gpus in (Gpus(8, 8, 79 * GIB, 60 * GIB), Gpus(8, 8, 40 * GIB)):
        with pytest.raises(UserError, match="left for the sampler: too little"):
            with_share(Run(compose(["scale=paper", *CLOSED])), gpus)


@pytest.mark.parametrize(("model", "stage"), [("qwen2.5-7b", 2), ("qwen2.5-32b", 3)])
def test_rows_are_those_that_the_cache_has_room_for(model: str, stage: int) -> None:
    """An eighth of the longest sequence each, and a step more would not fit; at most what vLLM has graphs for."""
    words = ["scale=paper", f"model={model}", *PLAIN, f"engine.zero_stage={stage}"]
    words.append(f"engine.offload={str(model == 'qwen2.5-32b').lower()}")
    config, gpus = compose(words), Gpus(8, 8, 79 * GIB)
    rows = choose(config, gpus)[0].sampler.max_rows
    again = Run(config).having("model.gradient_checkpointing", True)
    fitting, more = (memory(again.having("sampler.max_rows", n), gpus).cache for n in (rows, rows + 32))
    room = sequence_bytes(Run(config)) / 8
    assert rows * room <= fitting
    assert (rows + 32) * room > more
    assert choose(config, Gpus(8, 8, 500 * GIB))[0].sampler.max_rows == 512


def test_a_finished_run_is_measured_with_rows_that_fit_beside_no_trainer() -> None:
    config = compose(["scale=single_gpu", "model=qwen2.5-1.5b", "engine.offload=false"])
    assert choose(config, Gpus(bytes=23.5 * GIB))[0].sampler.max_rows == 4  # whose training does not fit
    assert with_all(Run(config), Gpus(bytes=23.5 * GIB)).config.sampler.max_rows == 512
    assert with_all(Run(config), Gpus()).config.sampler.max_rows == 256


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen2.5-32b"])
def test_what_is_planned_is_what_is_trained(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank goes by the cards, whatever else runs on its own."""
    found = Gpus(8, 8, H100.bytes, taken=20e9, card=H100, host=BY_NAME["8 H100"].host)
    monkeypatch.setattr(setup, "gpus_here", lambda device: found)
    config = compose(["scale=paper", f"model={model}"])
    planned = fit(Run(config), BY_NAME["8 H100"])
    chosen, why = setup.laid_out(Run(config))
    assert (chosen.config, why) == (planned.run.config, planned.why)
    assert not is_open(chosen)


def test_a_layout_that_is_chosen_changes_neither_id_nor_objective() -> None:
    run = Run(compose(["scale=single_gpu", "data=laptop", "model=laptop"]))
    chosen = run.having("engine.zero_stage", 3).having("sampler.max_rows", 64)
    assert (chosen.get("engine.zero_stage"), chosen.get("sampler.max_rows"), chosen.asked) == (3, 64, run)
    assert chosen.folder is run.folder
    assert chosen.objective is run.objective
    assert run.folder == RunFolder.of(run.config)
