"""Hours and dollars of a study on cards that each train one run."""

from dataclasses import replace
from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.planning.fit import fit
from tepo.planning.gpus import single_gpus
from tepo.planning.step_time import benchmark_time
from tepo.planning.study_totals import CardHours, card_hours
from tepo.policy.model.shapes import shape_of
from tepo.studies.plan import make_plan
from tepo.studies.study import load_study

CARDS = {one.card.name: one for one in single_gpus()}


def test_a_free_card_takes_the_next_run() -> None:
    hours = CardHours(CARDS["A100"], (3.0, 1.0, 1.0, 2.0, 4.0))
    assert [hours.clock(count) for count in (1, 2, 4, 8)] == [11.0, 7.0, 5.0, 4.0]
    assert hours.dollars == pytest.approx(11 * 1.5)


def test_a_run_is_its_steps_and_its_benchmarks_and_a_base_its_benchmarks(tmp_path: Path) -> None:
    units = make_plan(load_study("table1"), "single_gpu", store=tmp_path, overrides=["model=qwen2.5-0.5b"])
    card = CARDS["RTX 4090"]
    found = card_hours(units, card)
    base, *trained = found.runs
    config = compose(["scale=single_gpu"])
    fitted = fit(config, card)
    assert base == pytest.approx(benchmark_time(fitted.config, shape_of(config.model.path), card, fitted.memory) / 3600)
    assert trained == pytest.approx([base + 200 * fitted.time.total / 3600] * len(trained))
    assert 1 < trained[0] < 4  # what the scale promises of the shipped model on the smallest card


def test_a_study_with_a_run_that_does_not_fit_has_no_price(tmp_path: Path) -> None:
    units = make_plan(load_study("table1"), "single_gpu", store=tmp_path)
    assert card_hours(units, CARDS["RTX 4090"]) is None
    assert card_hours(units, CARDS["H100"]) is not None


def test_longer_responses_of_a_benchmark_take_longer() -> None:
    config, card = compose(["scale=single_gpu"]), CARDS["L40S"]
    shape, fitted = shape_of(config.model.path), fit(config, card)
    config, memory = fitted.config, fitted.memory
    times = [
        benchmark_time(replace(config, data=replace(config.data, benchmarks=[name])), shape, card, memory)
        for name in ("minerva:tokens100", "minerva:tokens500", "minerva")
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]
