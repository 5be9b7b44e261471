import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose, options
from tepo.config.run_config import RunConfig
from tepo.planning.fit import fit, measured_peaks
from tepo.planning.gpus import Machine, chosen, machines
from tepo.policy.model.shapes import KNOWN, Shape, shape_of
from tepo.studies.plan import make_plan
from tepo.studies.study import load_study
from tepo.training.resources.gpu_cards import GIB, Card
from tepo.training.resources.memory import TAKEN
from tepo.training.resources.remedies import changed
from tepo.training.run import Run
from tepo_cli.show_fit import show_fit, show_fits

CONFIGS = {name: compose(["scale=paper", f"model={name}"]) for name in options("model") if name != "laptop"}
BY_NAME = {machine.name: machine for machine in machines()}
ALONE = ("sampler.tensor_parallel=1", "engine.zero_stage=3")  # an engine on each GPU
LARGE = [machine for machine in machines() if machine.card.bytes > 70 * GIB]


@pytest.mark.parametrize("model", CONFIGS)
def test_what_is_said_to_help_does(model: str) -> None:
    words: set[str] = set()
    for machine in machines():
        found = fit(Run(CONFIGS[model]), machine)
        if not found.problem:
            assert found.changes == ()
            assert found.memory.peak <= machine.card.bytes
        elif found.changes is not None:
            assert fit(Run(changed(CONFIGS[model], found.changes)), machine).problem == ""
            words |= set(found.changes)
    compose(["scale=paper", f"model={model}", *sorted(words)])  # they are overrides as typed


def test_the_papers_models_on_eight_gpus() -> None:
    """The trainer's states of 7B do not fit on one GPU of 80 GB, and do on eight. A given share of 0.4 is too small for
    14B, whose cache it leaves less than a sequence; the plan's own fits, and is named."""
    small, large = compose(["scale=paper", "engine.offload=false"]), CONFIGS["qwen3-14b"]
    assert "the updates need" in fit(Run(small), BY_NAME["1 H100"]).problem
    assert fit(Run(small), BY_NAME["8 H100"]).problem == ""
    starved = fit(
        Run(compose(["scale=paper", "model=qwen3-14b", "sampler.memory_fraction=0.4", *ALONE])), BY_NAME["8 H100"]
    )
    assert "GiB of weights and a sequence of full length" in starved.problem
    assert starved.changes == ("sampler.memory_fraction=null",)
    assert fit(Run(large), BY_NAME["8 H100"]).problem == ""
    assert fit(Run(CONFIGS["qwen2.5-32b"]), BY_NAME["8 H100"]).memory.loading < 15 * GIB  # 61 for all of the weights


@pytest.mark.parametrize(("gpus", "name"), [(12, "2 x 6 H100"), (24, "3 x 8 H100"), (64, "8 x 8 H100"), (4, "4 H100")])
def test_any_number_of_gpus_is_planned(gpus: int, name: str) -> None:
    """Mini-batches are dealt by sequences: more GPUs make a shorter step."""
    (machine,) = chosen(machines(), "h100", gpus)
    assert (machine.name, machine.ranks, machine.host / machine.node_gpus) == (name, gpus, 1843 * GIB / 8)
    found, eight = (fit(Run(CONFIGS["qwen2.5-7b"]), one) for one in (machine, BY_NAME["8 H100"]))
    assert found.problem == ""
    assert (found.time.total < eight.time.total) is (gpus > 8)


@pytest.mark.parametrize(("model", "tokens"), [("qwen2.5-7b", 128_000), ("qwen2.5-32b", 56_000)])
def test_the_longest_sequences_that_one_gpu_trains_are_those_on_the_page(model: str, tokens: int) -> None:
    """As there is no context parallelism, more GPUs do not make them longer."""
    for more, problem in ((0, ""), (1000, "the updates need 79 GiB of 79")):
        words = ["scale=paper", f"model={model}", f"train.max_new_tokens={tokens + more - 2048}"]
        assert {fit(Run(compose(words)), BY_NAME[name]).problem for name in ("8 H100", "2 x 8 H100")} == {problem}
    assert f"{tokens:,}" in (Path(__file__).parents[3] / "docs/engines.md").read_text()


def test_a_reference_policy_is_counted() -> None:
    runs = [Run(compose(["scale=paper", "engine.zero_stage=2", f"objective={name}"])) for name in ("tepo", "grpo")]
    assert [run.needs.initial_policy for run in runs] == [False, True]
    assert runs[1].objective.needs == runs[1].needs
    plain, anchored = (fit(run, BY_NAME["8 H100"]).memory for run in runs)
    assert anchored.updating - plain.updating == 2 * KNOWN["Qwen/Qwen2.5-7B"].parameters


def test_a_model_of_unknown_shape_is_said() -> None:
    with pytest.raises(UserError, match="shape is not known"):
        shape_of("nobody/nothing")
    assert shape_of("package:laptop").parameters == pytest.approx(201_440, rel=0.01)


def test_the_plan_says_what_does_not_fit_and_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    show_fit(Run(CONFIGS["qwen2.5-7b"]))
    said = capsys.readouterr().err
    assert "1 RTX 4090: does not fit, " in said
    assert "good to a factor of 1.5" in " ".join(said.split())
    phases = "rollout + old log-probs + updates + reductions + rest + checkpoints"
    assert re.search(rf"seconds of a step \({re.escape(phases)}\): .*8 A100 \d", " ".join(said.split()))
    assert re.search(
        r"main memory of a node, of it 8 GiB a rank for its process: .* 177 GiB \(8 A100,", " ".join(said.split())
    )
    assert "layout: " not in said  # with the reasons in their place


def test_what_runs_on_gpus_took_stands_beside_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The most of all steps and runs; nothing of runs without a GPU."""
    units = make_plan(load_study("panel-e"), "single_gpu", store=tmp_path)
    trained = [unit for unit in units if not unit.row.base]
    for unit, updates in zip(trained, ((9.0, 11.5), (10.25, 8.0)), strict=False):
        unit.folder.path.mkdir(parents=True)
        rows = [
            {"training/global_step": number + 1, f"{TAKEN}gen": 40.0 + number, f"{TAKEN}update_actor": gib}
            for number, gib in enumerate(updates)
        ]
        (unit.folder.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    show_fits(units)
    said = " ".join(capsys.readouterr().err.split())
    assert "measured in 2 runs of the store, the most of a GPU that was taken: sampling 41.0 GiB, updating 11.5" in said
    assert measured_peaks([{"perf/cpu_s": 1.0}]) == {}


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A run of a model with the sizes of Qwen2.5-1.5B, responses of up to 3,584 tokens, with the embedded engine."""
    monkeypatch.setitem(KNOWN, "own/small", Shape(1536, 8960, 28, 12, 2, 128, 151_936, True))
    model = ("model.path=own/small", "model.dtype=bfloat16", "sampler=vllm")
    return compose([*model, "train.max_prompt_tokens=512", "train.max_new_tokens=3584"])


def card(gib: float, host: float = 60) -> Machine:
    return Machine(Card("one", gib * GIB, 165e12, 1e12, price=0.5), 1, 1, host * GIB)


def test_what_makes_a_small_model_fit_on_one_card(small_model: RunConfig) -> None:
    config = small_model
    large, middle, small = (fit(Run(config), card(gib)) for gib in (79, 47, 26))
    assert (large.problem, large.changes) == ("", ())
    assert middle.changes == ("engine.micro_batch_tokens=4096",)
    assert small.changes == ("model.gradient_checkpointing=true", "engine.offload=true")  # another layout first
    little = fit(Run(config), card(26, host=8))
    assert little.changes == ("model.gradient_checkpointing=true", "engine.optimizer=adamw_8bit")
    for found, machine in ((small, card(26)), (little, card(26, host=8))):
        assert fit(Run(changed(config, found.changes)), machine).problem == ""


def test_offload_is_what_is_left_for_a_smaller_card_and_deepspeed_for_the_smallest(small_model: RunConfig) -> None:
    config = small_model
    found = fit(Run(config), card(17))
    assert found.changes == ("model.gradient_checkpointing=true", "engine.offload=true")
    assert "engine.kind=deepspeed" in (fit(Run(config), card(11)).changes or ())
    assert fit(Run(config), card(11, host=8)).changes is None
    rounded = changed(config, ("engine.optimizer=adamw_8bit",))
    found = fit(Run(rounded), card(17))
    assert {"engine.optimizer=adamw", "engine.offload=true"} <= set(found.changes)
    assert fit(Run(changed(rounded, found.changes)), card(17)).problem == ""


def test_an_engine_that_does_not_fit_on_a_gpu_is_cut() -> None:
    """Beside the trainer of a 32B, a share of 0.5 holds no weights; on half of the GPU each of four holds a quarter."""
    config = compose(["scale=paper", "model=qwen2.5-32b", "sampler.memory_fraction=0.5", *ALONE])
    found = fit(Run(config), BY_NAME["8 H100"])
    assert "do not hold 61 GiB of weights" in found.problem
    assert found.changes == ("sampler.memory_fraction=null",)
    small = Machine(Card("L40S", 44.4 * GIB, 362e12, 0.86e12), 1, 8, 1843 * GIB)
    plain = replace(config, sampler=replace(config.sampler, memory_fraction=None))
    found = fit(Run(plain), small)
    assert found.problem
    assert found.changes == ("sampler.tensor_parallel=8",)
    assert "sampler.kind=vllm_server" not in found.changes


def test_a_plan_leaves_a_gibibyte_of_each_gpu() -> None:
    """1.5B with 8-bit moments on 24 GB: what a desktop holds, and what the plan misses, is not given away."""
    for machine in machines():
        for name in ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen3-1.7b-base"):
            found = fit(Run(compose(["scale=single_gpu", f"model={name}", "engine.optimizer=adamw_8bit"])), machine)
            after = fit(Run(changed(found.run.config, found.changes)), machine) if found.changes else found
            assert after.problem or after.memory.peak <= machine.card.bytes - GIB


def test_a_card_may_be_described() -> None:
    """As a known one it gives the plan of that one; what is no description is named."""
    (own,) = chosen([machine for machine in machines() if machine.ranks == 1], "Mine:23.5,1010,165,0.4", None)
    (known,) = chosen(machines(), "rtx4090", 1)
    assert own == replace(known, card=replace(known.card, name="Mine"))
    (both,) = chosen(machines(), "Mine:80,2000,312,1", 16)
    assert (both.name, both.ranks, both.card.bytes) == ("2 x 8 Mine", 16, 80 * GIB)
    for text in ("Mine:24,936", "Mine:24,936,71,free", ":24,936,71,1", "Mine:0,936,71,1", "Mine:24,inf,71,1", "Mine:"):
        with pytest.raises(UserError, match="describes no card"):
            chosen(machines(), text, None)


def test_a_plan_of_one_card_shows_that_card_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With what it chooses, and why."""
    units = make_plan(load_study("panel-e"), "paper", store=tmp_path)[:1]
    show_fits(units, "h100", 8)
    shown = capsys.readouterr().err
    assert " 8 H100 " in shown
    assert not re.search(r"A100|H200|L40S|RTX|2 x 8|\b1 H100", shown)
    show_fit(Run(compose(["scale=single_gpu"])), card="rtx4090")
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"max_rows is left open, so it becomes \d+: [\d.]+ GiB of cache, .* a row.* \(1 RTX 4090\)", said)
    with pytest.raises(UserError, match="unknown card 'h101'") as caught:
        show_fits(units, "h101")
    assert "did you mean 'h100'" in caught.value.fix
