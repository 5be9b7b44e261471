from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.planning.fit import StudyHours, fit, study_hours
from tepo.planning.gpus import chosen, machines
from tepo.studies.plan import make_plan, unique
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import Records
from tepo.studies.study import load_study
from tepo.training.resources.estimate import START, measuring_time
from tepo.training.run import Run
from tepo_cli.show_fit import answer, hours_on

PAGE = Path(__file__).parents[3] / "docs/scales.md"
TABLES = ("table1", "table2", "table3", "table4", "gtpo", "readings", "figures", *(f"panel-{one}" for one in "abcde"))
CARDS = {one.card.name: one for one in chosen(machines(), None, 1)}


def test_a_free_card_takes_the_next_run() -> None:
    hours = StudyHours(CARDS["A100"], (3.0, 1.0, 1.0, 2.0, 4.0))
    assert [hours.clock(count) for count in (1, 2, 4, 8)] == [11.0, 7.0, 5.0, 4.0]
    assert hours.dollars == pytest.approx(11 * 1.5)


def test_a_run_is_its_steps_and_its_benchmarks_and_a_base_its_benchmarks(tmp_path: Path) -> None:
    units = make_plan(load_study("table1"), "single_gpu", store=tmp_path, overrides=["model=qwen2.5-0.5b"])
    card = CARDS["RTX 4090"]
    found = study_hours(units, card)
    base, *trained = found.runs
    config = compose(["scale=single_gpu"])
    fitted = fit(Run(config), card)
    assert base == pytest.approx(measuring_time(fitted.run, card.of(fitted.run)) / 3600)
    one = START + 200 * fitted.time.total + fitted.time.write
    assert trained == pytest.approx([base + one / 3600] * len(trained))
    assert 1 < trained[0] < 4  # what the scale promises of the shipped model on the smallest card


def test_a_study_names_the_models_that_do_not_fit(tmp_path: Path) -> None:
    units = make_plan(load_study("table1"), "single_gpu", store=tmp_path, overrides=["engine.offload=false"])
    assert study_hours(units, CARDS["RTX 4090"]).unfit == ("qwen3-1.7b-base",)
    assert study_hours(units, CARDS["H100"]).unfit == ()


def test_the_answer_has_the_best_of_hours_and_dollars_and_what_does_not_fit(tmp_path: Path) -> None:
    units = make_plan(load_study("table1"), "single_gpu", store=tmp_path)
    found = [
        StudyHours(CARDS["RTX 4090"], (9.0,), ("large",)),
        StudyHours(CARDS["L40S"], (20.0, 20.0)),  # 36 dollars
        StudyHours(CARDS["H100"], (8.0, 8.0)),  # 40 dollars
    ]
    assert answer(units, found, None) == "16.0 h on one H100, about $40; large does not fit on RTX 4090"
    assert answer(units, found, 2).startswith("8.0 h on 2 H100, about $40;")
    assert answer(units, found[:1], None) == "no machine that every run fits on; large does not fit on RTX 4090"


def test_machines_of_several_gpus_are_paid_for_in_full(tmp_path: Path) -> None:
    units = make_plan(load_study("panel-e"), "paper", store=tmp_path)[:1]
    (eight,) = hours_on(units, "h100", 8)
    fitted = fit(Run(units[0].config), eight.machine)
    assert eight.dollars == pytest.approx(fitted.hours(trained=True) * 8 * 2.5)
    assert answer(units, [eight], 8) == f"{sum(eight.runs):.1f} h on 8 H100, about ${eight.dollars:.0f}"


def test_hours_and_dollars_of_every_table_stand_on_the_page_as_they_are_planned(tmp_path: Path) -> None:
    """At the layout that is chosen; said to be unmeasured as long as no run of the scale is on record."""

    def cell(name: str, scale: str, card: str, gpus: int) -> str:
        units = unique(unit for _, units in plan_all([name], scale, store=tmp_path) for unit in units)
        ids.extend(unit.id for unit in units)
        (found,) = hours_on(units, card, gpus)
        if found.unfit:
            return f"{', '.join(found.unfit)}: with changes"
        return f"{found.clock(1):,.0f} h, ${found.dollars:,.0f}"

    rows, ids = [], list[str]()
    for name in TABLES:
        cells = (
            cell(name, *how) for how in (("paper", "h100", 8), ("single_gpu", "rtx4090", 1), ("single_gpu", "h100", 1))
        )
        rows.append(f"| {name} | {' | '.join(cells)} |")
    text = PAGE.read_text()
    head = "| planned, not measured | paper, 8 H100 | single_gpu, one RTX 4090 | single_gpu, one H100 |"
    assert "\n".join(rows) in text, "docs/scales.md, What each table takes:\n" + "\n".join(
        [head, "|---|---|---|---|", *rows]
    )
    assert (head in text) is not any(id in Records.found().by_run for id in ids)


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


def test_the_page_shows_what_the_plan_says_of_a_model_that_does_not_fit() -> None:
    found = fit(Run(compose(["scale=single_gpu", "model=qwen2.5-1.5b", "engine.offload=false"])), CARDS["RTX 4090"])
    assert f"does not fit, {found.problem}. It would with {' '.join(found.changes or ())}." in PAGE.read_text()
