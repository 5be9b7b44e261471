import itertools
from dataclasses import replace

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.planning.fit import fit
from tepo.planning.gpus import machines
from tepo.policy.model.shapes import KNOWN
from tepo.training.resources.gpu_cards import A100, GIB, H100
from tepo.training.resources.layout import fill, is_open, lacking, with_all, with_share
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


def left_open(config: RunConfig) -> list[object]:
    return [Run(config).get(key) for key in OPEN]


@pytest.mark.parametrize("scale", ["single_gpu", "paper"])
@pytest.mark.parametrize(("gpus", "said"), [(CPU, OPEN[3:]), (ONE, (OPEN[1], *OPEN[3:])), (EIGHT, OPEN)])
def test_what_is_left_open_is_chosen_with_a_reason(scale: str, gpus: Gpus, said: tuple[str, ...]) -> None:
    """Where there is a choice: one GPU has nothing to cut but what is offloaded, and a CPU takes the usual values."""
    config = compose([f"scale={scale}", "engine=deepspeed"])
    assert left_open(config) == [None] * 6
    found, why = choose(config, gpus)
    assert is_open(Run(config))
    assert not is_open(Run(found))
    said = {*said, *([CHOSEN[2]] if found.engine.offload else [])}
    assert {key: text.split(":")[0].capitalize() for key, text in why.items()} == {
        key: str(Run(found).get(key)) for key in said
    }
    assert choose(found, gpus) == (found, {})  # once, and what is given stays


@pytest.mark.parametrize(
    ("name", "model"), [("8 H100", "qwen2.5-32b"), ("8 A100", "qwen2.5-7b"), ("8 H200", "qwen3-14b")]
)
def test_no_layout_that_fits_is_faster_than_the_one_that_is_chosen(name: str, model: str) -> None:
    """By the plan's own figures, each layout given by hand; but for the fiftieth that a setting has to save."""
    words = ["scale=paper", f"model={model}"]
    best = fit(Run(compose(words)), BY_NAME[name])
    assert not best.problem
    layouts = itertools.product((1, 2, 4, 8), (8192, 10240, 16384, 32768), (1, 2, 3))
    for sizes in layouts:
        given = [f"{key}={value}" for key, value in zip(CHOSEN, sizes, strict=True)]
        other = fit(Run(compose([*words, *given])), BY_NAME[name])
        assert other.problem or best.time.total <= 1.06 * other.time.total, given


def test_a_large_model_is_cut_over_gpus_where_that_is_faster() -> None:
    """32B on 8 H100: of 1,231 s a step with an engine on each GPU less than half are left."""
    words = ["scale=paper", "model=qwen2.5-32b"]
    chosen, alone = (
        fit(Run(compose([*words, *more])), BY_NAME["8 H100"]) for more in ([], ["sampler.tensor_parallel=1"])
    )
    assert chosen.run.config.sampler.tensor_parallel in (4, 8)
    assert chosen.time.total < 0.5 * alone.time.total
    assert f"1: {alone.time.total:.0f} s, 2: " in chosen.why["sampler.tensor_parallel"]
    assert chosen.why["engine.zero_stage"].endswith("1: no room, 2: no room")


def test_the_optimiser_lies_in_main_memory_only_where_nothing_fits_without() -> None:
    """32B: on eight H100 it must, sixteen hold it. With 1 TiB of main memory too, of which ZeRO 3 takes 18 bytes a
    weight and no copy of the model a rank; not with half of that."""
    config = compose(["scale=paper", "model=qwen2.5-32b"])
    eight, sixteen = BY_NAME["8 H100"], BY_NAME["2 x 8 H100"]
    for machine, offload, said in ((eight, True, "true: no layout fits"), (sixteen, False, "false: a layout fits")):
        found = fit(Run(config), machine)
        assert (found.problem, found.run.config.engine.offload) == ("", offload)
        assert found.why["engine.offload"] == f"{said} without"
    small = fit(Run(config), replace(eight, host=1024 * GIB))
    assert (small.problem, small.run.config.engine.zero_stage) == ("", 3)
    assert small.memory.host == pytest.approx(18 * small.run.shape.parameters)
    assert fit(Run(config), replace(eight, host=512 * GIB)).problem


def test_heads_that_cannot_be_cut_are_not_cut() -> None:
    """28 heads over 8 GPUs."""
    assert "8: " not in fit(Run(compose(["scale=paper"])), BY_NAME["8 H100"]).why["sampler.tensor_parallel"]
    pairs = Gpus(4, 2, H100.bytes, card=H100)  # nodes of two: an engine lies on one
    assert choose(compose(["scale=paper"]), pairs)[0].sampler.tensor_parallel in (1, 2)


def test_what_is_given_is_kept_and_the_rest_is_chosen() -> None:
    config = compose(["scale=paper", "sampler.tensor_parallel=2", "engine.zero_stage=3"])
    found, why = choose(config, EIGHT)
    assert (found.sampler.tensor_parallel, found.engine.zero_stage) == (2, 3)
    assert CHOSEN[0] not in why
    assert CHOSEN[1] in why


def test_where_nothing_fits_the_nearest_is_planned_and_said_not_to_fit() -> None:
    small = Gpus(8, 8, 8 * GIB, card=A100)
    found, why = fill(Run(compose(["scale=paper"])), small)
    assert found.config.engine.zero_stage == 3
    assert why["engine.zero_stage"].startswith("3: nothing fits, and this lacks least")
    assert max(lacks for lacks, _ in lacking(found, small, memory(found, small))) > 0


@pytest.mark.parametrize("model", ["qwen2.5-7b", "qwen3-14b"])
def test_the_samplers_share_is_what_the_trainer_leaves(model: str) -> None:
    """All phases fit, and nearly all of the GPU is used while responses are drawn; the cache holds sequences."""
    config, device = compose(["scale=paper", f"model={model}", *CLOSED, "engine.zero_stage=3"]), 79 * GIB
    shape, gpus = KNOWN[config.model.path], Gpus(8, 8, device)
    found = memory(Run(config), gpus)
    assert 0.95 * device < found.sampling <= found.peak < device
    assert found.sampler == pytest.approx(2 * shape.parameters + 3.5 * GIB + found.cache)
    share = with_share(Run(config), gpus).config.sampler.memory_fraction
    assert found.sampler - 0.001 * device < share * device <= found.sampler
    given = compose(["scale=paper", f"model={model}", "sampler.memory_fraction=0.3", *CLOSED])
    assert with_share(Run(given), gpus).config == given
    assert memory(Run(given), gpus).sampler == pytest.approx(0.3 * device)


def test_what_others_hold_of_the_gpu_is_taken_off_the_share() -> None:
    """Training and measuring; a sampler without memory of its own asks for none."""
    config, others = compose(["scale=paper", *CLOSED, "sampler.max_rows=9999"]), 2 * GIB
    free, shared = Gpus(8, 8, 79 * GIB), Gpus(8, 8, 79 * GIB, others)
    for share_of in (with_share, with_all):
        alone, beside = (share_of(Run(config), gpus).config.sampler.memory_fraction for gpus in (free, shared))
        assert beside == pytest.approx(alone - 2 / 79, abs=0.002)
    plan = memory(Run(config), shared)
    assert plan.sampling + others < 79 * GIB
    for gpus, said in (
        (Gpus(8, 8, 79 * GIB, 60 * GIB), "too little .* other processes hold 60"),
        (Gpus(8, 8, 40 * GIB), r"11\.\d of 40 GiB are left for the sampler: too little"),
    ):
        with pytest.raises(UserError, match=said):
            with_share(Run(compose(["scale=paper", *CLOSED])), gpus)


def test_layers_are_computed_twice_only_where_the_memory_needs_it() -> None:
    """A tenth of the memory is left, because what is kept of activations is counted and not measured."""
    config = compose(["scale=single_gpu", *PLAIN, "engine.offload=false"])
    config = replace(config, sampler=replace(config.sampler, max_rows=256))
    kept = replace(config, model=replace(config.model, gradient_checkpointing=False))
    for gib in range(16, 60, 2):
        found = choose(config, gpus := Gpus(bytes=gib * GIB))[0]
        assert found.model.gradient_checkpointing is (memory(Run(kept), gpus).updating > 0.9 * gib * GIB)
    assert choose(config, Gpus(bytes=24 * GIB))[0].model.gradient_checkpointing is True
    assert choose(config, Gpus(bytes=79 * GIB))[0].model.gradient_checkpointing is False


@pytest.mark.parametrize(("model", "stage"), [("qwen2.5-7b", 2), ("qwen3-14b", 3), ("qwen2.5-32b", 3)])
def test_rows_are_those_that_the_cache_has_room_for(model: str, stage: int) -> None:
    """An eighth of the longest sequence each, and a step more would not fit; at most what vLLM has graphs for."""
    words = ["scale=paper", f"model={model}", *PLAIN, f"engine.zero_stage={stage}"]
    words.append(f"engine.offload={str(model == 'qwen2.5-32b').lower()}")
    config, gpus = compose(words), Gpus(8, 8, 79 * GIB)
    rows = choose(config, gpus)[0].sampler.max_rows
    fitting = [
        memory(Run(compose([*words, CLOSED[4], f"sampler.max_rows={n}"])), gpus).cache for n in (rows, rows + 32)
    ]
    room = sequence_bytes(Run(config)) / 8
    assert rows * room <= fitting[0]
    assert (rows + 32) * room > fitting[1]
    assert choose(config, Gpus(8, 8, 500 * GIB))[0].sampler.max_rows == 512


def test_a_finished_run_is_measured_with_rows_that_fit_beside_no_trainer() -> None:
    config = compose(["scale=single_gpu", "model=qwen2.5-1.5b", "engine.offload=false"])
    assert choose(config, Gpus(bytes=23.5 * GIB))[0].sampler.max_rows == 4  # whose training does not fit
    assert with_all(Run(config), Gpus(bytes=23.5 * GIB)).config.sampler.max_rows == 512
    assert with_all(Run(config), Gpus()).config.sampler.max_rows == 256
