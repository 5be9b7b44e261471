"""Hours and dollars of a study on cards that each train one run."""

from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.planning.fit import fit
from tepo.planning.gpus import single_gpus
from tepo.planning.study_totals import StudyHours, study_hours
from tepo.studies.plan import make_plan
from tepo.studies.study import load_study
from tepo.training.resources.estimate import START, measuring_time
from tepo_cli.show_fit import answer, hours_on

CARDS = {one.card.name: one for one in single_gpus()}


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
    fitted = fit(config, card)
    assert base == pytest.approx(measuring_time(fitted.config, fitted.shape, card.of(fitted.config)) / 3600)
    assert trained == pytest.approx([base + (START + 200 * fitted.time.total) / 3600] * len(trained))
    assert 1 < trained[0] < 4  # what the scale promises of the shipped model on the smallest card


def test_a_study_names_the_models_that_do_not_fit(tmp_path: Path) -> None:
    units = make_plan(load_study("table1"), "single_gpu", store=tmp_path)
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
    fitted = fit(units[0].config, eight.machine)
    assert eight.dollars == pytest.approx(fitted.hours(trained=True) * 8 * 2.5)
    assert answer(units, [eight], 8) == f"{sum(eight.runs):.1f} h on 8 H100, about ${eight.dollars:.0f}"
