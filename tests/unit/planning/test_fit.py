from dataclasses import replace
from pathlib import Path

import pytest

from tepo.config.compose import compose, options
from tepo.planning.fit import fit
from tepo.planning.gpus import Machine, machines
from tepo.planning.laptop_cost import closed_form_seconds
from tepo.policy.model.shapes import KNOWN, Shape
from tepo.store.checkpoint_files import damage
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import unique
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo.training.loop import train
from tepo.training.resources.disk import run_disk
from tepo.training.resources.gpu_cards import GIB, Card
from tepo.training.resources.remedies import changed
from tepo.training.run import Run
from tepo_cli.show_fit import hours_on
from tests.support.runs import small

CONFIGS = {name: compose(["scale=paper", f"model={name}"]) for name in options("model") if name != "laptop"}
BY_NAME = {machine.name: machine for machine in machines()}
ALONE = ("sampler.tensor_parallel=1", "engine.zero_stage=3")  # an engine on each GPU


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
    words = ["scale=paper", "model=qwen3-14b", "sampler.memory_fraction=0.4", *ALONE]
    starved = fit(Run(compose(words)), BY_NAME["8 H100"])
    assert "GiB of weights and a sequence of full length" in starved.problem
    assert starved.changes == ("sampler.memory_fraction=null",)
    assert fit(Run(large), BY_NAME["8 H100"]).problem == ""
    assert fit(Run(CONFIGS["qwen2.5-32b"]), BY_NAME["8 H100"]).memory.loading < 15 * GIB  # 61 for all of the weights


@pytest.mark.parametrize(("model", "tokens"), [("qwen2.5-7b", 128_000), ("qwen2.5-32b", 56_000)])
def test_the_longest_sequences_that_one_gpu_trains_are_those_on_the_page(model: str, tokens: int) -> None:
    """As there is no context parallelism, more GPUs do not make them longer."""
    for more, problem in ((0, ""), (1000, "the updates need 79 GiB of 79")):
        words = ["scale=paper", f"model={model}", f"train.max_new_tokens={tokens + more - 2048}"]
        assert {fit(Run(compose(words)), BY_NAME[name]).problem for name in ("8 H100", "2 x 8 H100")} == {problem}
    assert f"{tokens:,}" in (Path(__file__).parents[3] / "docs/engines.md").read_text()


def card(gib: float, host: float = 60) -> Machine:
    return Machine(Card("one", gib * GIB, 165e12, 1e12, price=0.5), 1, 1, host * GIB)


def test_what_makes_a_small_model_fit_on_one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with the sizes of Qwen2.5-1.5B, responses of up to 3,584 tokens, with the embedded engine."""
    monkeypatch.setitem(KNOWN, "own/small", Shape(1536, 8960, 28, 12, 2, 128, 151_936, True))
    model = ("model.path=own/small", "model.dtype=bfloat16", "sampler=vllm")
    config = compose([*model, "train.max_prompt_tokens=512", "train.max_new_tokens=3584"])
    large, middle, small = (fit(Run(config), card(gib)) for gib in (79, 47, 26))
    assert (large.problem, large.changes) == ("", ())
    assert middle.changes == ("engine.micro_batch_tokens=4096",)
    assert small.changes == ("model.gradient_checkpointing=true", "engine.offload=true")  # another layout first
    little = fit(Run(config), card(26, host=8))
    assert little.changes == ("model.gradient_checkpointing=true", "engine.optimizer=adamw_8bit")
    for found, machine in ((small, card(26)), (little, card(26, host=8))):
        assert fit(Run(changed(config, found.changes)), machine).problem == ""


def test_an_engine_that_does_not_fit_on_a_gpu_is_cut() -> None:
    """Beside the trainer of a 32B, a share of 0.5 holds no weights; on half of the GPU each of four holds a quarter."""
    plain = compose(["scale=paper", "model=qwen2.5-32b", *ALONE])
    small = Machine(Card("L40S", 44.4 * GIB, 362e12, 0.86e12), 1, 8, 1843 * GIB)
    assert fit(Run(plain), small).changes == ("sampler.tensor_parallel=8",)
    found = fit(Run(replace(plain, sampler=replace(plain.sampler, memory_fraction=0.5))), BY_NAME["8 H100"])
    assert "do not hold 61 GiB of weights" in found.problem


def size(folder: Path, *names: str) -> int:
    return sum(path.stat().st_size for name in names for path in folder.glob(name))


@pytest.mark.parametrize("words", [(), ("model.dtype=bfloat16",)], ids=["float32", "bfloat16"])
def test_the_plan_has_the_bytes_that_a_run_writes(tmp_path: Path, words: tuple[str, ...]) -> None:
    config = small(tmp_path, "train.steps=2", *words)
    run, seen = RunFolder.of(config), []

    def look(step: int, row: dict) -> None:
        if step == 2:
            assert not damage(run.checkpoint(1))
            seen.append(size(run.checkpoint(1), "*.safetensors", "optimizer/*"))

    train(Run(config), look)
    planned = run_disk(Run(config))
    assert seen[0] == pytest.approx(planned.checkpoint, rel=0.03)  # headers, norms and biases
    assert size(run.checkpoint(2), "**/*.safetensors") == pytest.approx(planned.weights, rel=0.03)


PAGE = Path(__file__).parents[3] / "docs/scales.md"
TABLES = ("table1", "table2", "table3", "table4", "gtpo", "readings", "figures", *(f"panel-{one}" for one in "abcde"))


def cell(name: str, scale: str, card: str, gpus: int, store: Path) -> str:
    units = unique(unit for _, units in plan_all([name], scale, store=store) for unit in units)
    (found,) = hours_on(units, card, gpus)
    if found.unfit:
        return f"{', '.join(found.unfit)}: with changes"
    return f"{found.clock(1):,.0f} h, ${found.dollars:,.0f}"


def test_hours_and_dollars_of_every_table_stand_on_the_page_as_they_are_planned(tmp_path: Path) -> None:
    """At the layout that is chosen."""
    columns = (("paper", "h100", 8), ("single_gpu", "rtx4090", 1), ("single_gpu", "h100", 1))
    rows = [f"| {name} | {' | '.join(cell(name, *how, tmp_path) for how in columns)} |" for name in TABLES]
    head = "| planned, not measured | paper, 8 H100 | single_gpu, one RTX 4090 | single_gpu, one H100 |"
    table = "\n".join([head, "|---|---|---|---|", *rows])
    assert table in PAGE.read_text(), f"docs/scales.md, What each table takes:\n{table}"


def test_the_cost_of_a_run_and_of_a_panel_on_the_page_of_results_is_what_is_planned(tmp_path: Path) -> None:
    places = (
        ("Qwen2.5-0.5B on one RTX 4090", "single_gpu", "rtx4090", 1),
        ("Qwen2.5-0.5B on one H100", "single_gpu", "h100", 1),
        ("Qwen2.5-7B on 8 H100", "paper", "h100", 8),
    )
    rows = []
    for place, scale, card, gpus in places:
        units = unique(unit for _, units in plan_all(["panel-e"], scale, store=tmp_path) for unit in units)
        (one,), (all_,) = (hours_on(part, card, gpus) for part in ([units[-1]], units))
        run = f"{one.clock(1):.1f} h, ${one.dollars:.2f}"
        rows.append(f"| {place} | {run} | {all_.clock(1):.0f} h, ${all_.dollars:.0f} |\n")
    assert "".join(rows) in (PAGE.parent / "results.md").read_text(), "".join(rows)


@pytest.mark.parametrize("study", ["lengths", "stability", "long_sparse", "updates"])
def test_a_run_on_record_costs_what_the_closed_form_says_to_a_factor_of_four(study: str, tmp_path: Path) -> None:
    planned, facts = read_facts(plan_all([study], "laptop", store=tmp_path), records=True)
    spent = {run.run: sum(cost.cpu_s for cost in run.costs) for run in facts.runs.itertuples() if run.costs}
    units = {unit.config.data.name: unit for _, part in planned for unit in part if unit.id in spent}
    assert units
    for unit in units.values():
        said = closed_form_seconds(Run(unit.config), unit.config.train.steps, measured=True)
        assert 1 / 4 < said / spent[unit.id] < 4, (unit.label, said, spent[unit.id])
