import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tepo.reporting.charts.curves import TRAINING_PANELS, curve_frame
from tepo.store.facts import Facts, curves_of, joined_curves, joined_scores, thinned


def metrics(steps: int, validate_every: int = 5) -> list[dict]:
    rows = []
    for step in range(1, steps + 1):
        row = {"training/global_step": step, "training/responses": 608.0 * step, "perf/cpu_s": 0.9 + 0.0123 * step}
        row |= {"actor/realised_kl_k3": 0.00123456 / step, "rollout/prompts": 77.0, "actor/clip_low_over_sd": 2.0}
        row |= {panel.metric: 1 / (3 + step) for panel in TRAINING_PANELS}
        row |= {f"critic/score/best@{size}": 0.8 - 1 / (size + step) for size in (2, 4, 8)}
        if step % validate_every == 0:
            row |= {"val-core/add3/acc/mean@4": step / 3000, "val-core/average": step / 7000}
        rows.append(row)
    return rows


def positions(rows: list[dict], against: str) -> list[float]:
    """Where the steps of a run lie on an axis."""
    own = {"method": "a", "seed": 0, "run": "r", "ended": False}
    return curve_frame(pd.DataFrame(rows).assign(**own), against=against)["at"].tolist() if rows else []


@pytest.mark.parametrize("steps", [0, 1, 36, 119, 120, 432])
def test_validation_and_sums_are_there_at_every_step(steps: int) -> None:
    rows = metrics(steps)
    back = thinned(rows)
    assert [row["training/global_step"] for row in back] == list(range(1, steps + 1))
    for old, new in zip(rows, back, strict=True):
        wanted = {name: value for name, value in old.items() if name.startswith("val-core/")}
        assert {name: value for name, value in new.items() if name.startswith("val-core/")} == wanted  # exact
        assert new["training/responses"] == old["training/responses"]
    for name in ("perf/cpu_s", "actor/realised_kl_k3"):
        assert sum(row[name] for row in back) == pytest.approx(sum(row[name] for row in rows), rel=0.05)  # two digits
    for against in ("samples", "kl"):
        assert positions(back, against) == pytest.approx(positions(rows, against), rel=0.05)


@pytest.mark.parametrize("steps", [1, 36, 432])
def test_what_is_drawn_is_there_at_as_many_steps_as_can_be_seen(steps: int) -> None:
    rows = metrics(steps)
    back = thinned(rows)
    for panel in TRAINING_PANELS:
        drawn = {row["training/global_step"]: row[panel.metric] for row in back if panel.metric in row}
        assert min(steps, 60) <= len(drawn) <= 120
        assert {1, steps} <= set(drawn)
        for step, value in drawn.items():
            assert value == pytest.approx(rows[step - 1][panel.metric], rel=0.06)
    assert {name for row in back for name in row if "best@" in name} == {"critic/score/best@4", "critic/score/best@8"}


def test_a_run_without_a_metric_lacks_it_and_one_step_may() -> None:
    assert thinned([{"training/global_step": 1}]) == [{"training/global_step": 1}]
    rows = metrics(3)
    del rows[1]["actor/grad_norm"]
    assert ["actor/grad_norm" in row for row in thinned(rows)] == [True, False, True]
    rows[2]["actor/grad_norm"] = math.inf
    assert thinned(rows)[2]["actor/grad_norm"] == math.inf


NAMES = [*dict.fromkeys(name for row in metrics(5) for name in row), "start/val-core/x"][1:]
VALUES = st.one_of(st.floats(allow_nan=False), st.integers(-(10**9), 10**9))


@given(st.integers(0, 200), st.dictionaries(st.sampled_from(NAMES), VALUES), st.data())
def test_what_is_thin_stays_as_it_is_and_goes_through_a_frame(steps: int, shared: dict, data: st.DataObject) -> None:
    """Else what is decided by a record could be another thing than what is decided by its run."""
    rows = [{"training/global_step": step, **shared} for step in range(1, steps + 1)]
    for place in data.draw(st.lists(st.sampled_from(range(steps)), max_size=5)) if steps else ():
        rows[place] |= data.draw(st.dictionaries(st.sampled_from(NAMES), VALUES))
    once = thinned(rows)
    assert thinned(once) == once
    if steps:
        curves = joined_curves([curves_of("r", once)])
        assert Facts(curves, joined_scores([]), curves).metrics("r") == once
