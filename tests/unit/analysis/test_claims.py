import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from tepo.analysis.charts import claims_chart
from tepo.analysis.claim_outcomes import ClaimOutcome, judge_claims
from tepo.analysis.claims_table import claims_table
from tepo.evaluation.statistics.verdict import DeltaVerdict
from tepo.reporting.headline import headline
from tepo.reporting.tables.table import Table
from tepo.store.early_stop import Ending
from tepo.store.facts import thinned
from tepo.studies.claims import Claims, load_claims, read_claims
from tepo.studies.plan import Unit
from tests.support.claims import BASES, facts, is_a, judged, planned, text
from tests.support.runs import write

CHANCES = {"up": 0.8, "down": 0.2, "same": 0.5, "far": 0.5, "close": 0.54}


def read(tmp_path: Path, said: str) -> tuple[Claims, list[list[Unit]]]:
    claims = read_claims(write(tmp_path / "claims.yaml", said))
    return claims, planned(claims, tmp_path / "runs")


def chance(unit: Unit) -> float:
    """Of a right sample: by the name of the claim for A, one half for B."""
    return CHANCES[unit.row.label.partition(":")[0]] if is_a(unit) else 0.5


def shown(found: Mapping[str, ClaimOutcome]) -> Table:
    return claims_table(list(found.values()), ())


def texts(table: Table, key: str) -> dict[str, str]:
    """A column."""
    return {name: cell.text for block in table.blocks for name, cell in block.column(key).items()}


def test_verdict_p_and_interval_are_of_one_rule(tmp_path: Path) -> None:
    """The crossed error of 8 seeds and 60 problems by numpy, the mixed tails by scipy, Holm by hand."""
    regions = {"up": "{at_least: 2}", "down": "{at_least: -2}", "same": "{between: [-9, 9]}"}
    regions |= {"far": "{outside: [-9, 9]}", "close": "{at_least: 2}"}
    claims, units = read(tmp_path, text(**regions))
    known = facts(units, chance)
    found = judged(claims, units, known)
    table = shown(found)
    words = {name: word.partition(";")[0] for name, word in texts(table, "claim").items()}
    assert words == {"up": "holds", "down": "refuted", "same": "holds", "far": "refuted", "close": "undecided"}
    assert headline(table) == "Of 5 registered claims 2 hold, 2 are refuted and 1 is undecided"
    for part, (name, one) in zip(units, found.items(), strict=True):
        right = [np.array(known.right(unit.id, "add3:problems9").right) / 4 for unit in part]
        a, b = ([one for one, unit in zip(right, part, strict=True) if is_a(unit) is side] for side in (True, False))
        low, delta, high, error, below = interval(np.subtract(a, b), 0.95 if name in ("same", "far") else 0.9)
        assert one.answer.delta == pytest.approx(delta)
        assert one.answer.interval == pytest.approx((low, high), abs=1e-6), name
        if name == "up":  # the smallest of five
            assert one.answer.p == pytest.approx(5 * below((0.02 - delta) / error), rel=1e-6)
            cell = table.blocks[0].rows[0].cells[0]
            assert (cell.low, cell.mean, cell.high) == pytest.approx((100 * low, 100 * delta, 100 * high), abs=1e-4)
    said = ["at least +2", "at least −2", "−9 to +9", "below −9 or above +9", "at least +2"]
    assert list(texts(table, "region").values()) == said


def interval(x: np.ndarray, level: float) -> tuple[float, float, float, float, Any]:
    """Of differences [seeds, problems]: ends and middle of the interval, the error, and the tail below a t."""
    seeds, problems = x.shape
    of_seeds, of_problems = x.mean(axis=1).var(ddof=1) / seeds, x.mean(axis=0).var(ddof=1) / problems
    error, share = (of_seeds + of_problems) ** 0.5, of_seeds / (of_seeds + of_problems)

    def below(t: float) -> float:
        return share * stats.t.cdf(t, seeds - 1) + (1 - share) * stats.t.cdf(t, problems - 1)

    half = error * optimize.brentq(lambda t: below(t) - (1 + level) / 2, 0, 20)
    return x.mean() - half, x.mean(), x.mean() + half, error, below


def test_a_claim_is_judged_when_all_of_its_runs_are_there(tmp_path: Path) -> None:
    claims, units = read(tmp_path, text(up="{at_least: 5}", close="{at_least: 5}"))
    early = judged(claims, units, facts(units, chance, missing=units[0][-1:]))
    assert [texts(shown(early), key)["up"] for key in ("runs", "claim", "p", "delta")] == ["15 of 16", "", "", ""]
    close = early["close"].answer
    plain = close.question.region.p_values(close.question.estimate)
    doubled = [min(1, 2 * p) for p in plain]
    assert [close.p_outside, close.p_inside] == doubled, "what is not measured counts in the family"
    (alone,) = judge_claims(claims, {"close": units[1]}, facts(units, chance, missing=units[0][-1:]))
    assert alone.answer == close, "nor does what is not planned leave it"


def test_another_batch_moves_no_verdict_and_all_together_are_said_beside_it(tmp_path: Path) -> None:
    first = text(up="{at_least: 2}", close="{at_least: 2}")
    claims, units = read(tmp_path, first)
    alone = judged(claims, units, facts(units, chance))
    more = text(batch=2, start=200, down="{at_least: 2}", same="{at_least: 2}", far="{at_least: 2}")
    claims, units = read(tmp_path, first + more.removeprefix("claims:\n"))
    found = judged(claims, units, facts(units, chance))
    assert {name: found[name].answer for name in alone} == {name: one.answer for name, one in alone.items()}
    assert "With Holm's procedure over all 5 at once, 1 holds, " in " ".join(shown(found).notes)


def test_in_fixed_order_each_is_tested_at_five_percent_up_to_the_first_that_does_not_hold(tmp_path: Path) -> None:
    """Nothing is multiplied; what stands behind is not tested, also where the first is not measured."""
    said = "batches: {1: fixed order}\n" + text(
        up="{at_least: 2}", far="{at_least: -9}", close="{at_least: 2}", down="{at_most: 0}"
    )
    claims, units = read(tmp_path, said)
    known = facts(units, chance)
    found = judged(claims, units, known)
    words = [one.verdict for one in found.values()]
    assert words == [DeltaVerdict.HOLDS, DeltaVerdict.HOLDS, DeltaVerdict.UNDECIDED, DeltaVerdict.NOT_TESTED]
    for one in list(found.values())[:3]:
        assert one.answer.p == min(one.claim.tested.p_values(one.answer.question.estimate))
    assert [texts(shown(found), key)["down"] for key in ("claim", "p")] == ["not tested", ""]
    waiting = judged(claims, units, facts(units, chance, missing=units[0][:1]))
    assert [one.verdict for one in waiting.values()] == [None, *[DeltaVerdict.NOT_TESTED] * 3]


def test_entropy_is_compared_at_equal_reward_in_training(tmp_path: Path) -> None:
    """A learns twice as fast and has 0.03 nats more at any reward, give or take a hundredth by its seed."""
    claims, units = read(tmp_path, text(up="{at_least: 0.5}\n    measure: entropy"))

    def curves(unit: Unit) -> list[dict[str, Any]]:
        rewards = [0.3 + (0.02 if is_a(unit) else 0.01) * step for step in range(20)]
        more = (0.03 + 0.01 * (unit.seed % 2 - 0.5)) * is_a(unit)
        return [
            {"training/global_step": step, "critic/score/mean": reward, "actor/entropy": 0.5 - reward / 2 + more}
            for step, reward in enumerate(rewards, start=1)
        ]

    one = judged(claims, units, facts(units, curves=curves))["up"]
    gaps = 0.03 + 0.01 * (np.arange(8) % 2 - 0.5)
    assert one.verdict == "holds"
    assert one.answer.question.sample == pytest.approx(gaps, abs=5e-4)
    p = stats.ttest_1samp(gaps, 0.005, alternative="greater").pvalue
    assert one.answer.p == pytest.approx(p, rel=0.3)
    assert texts(shown({"up": one}), "unit") == {"up": "hundredths of a nat"}


@pytest.mark.parametrize(
    ("measure", "delta"),
    [("late_entropy", 2.0), ("late_length", -5.0), ("late_best", 10.0), ("realised_kl", 69.3), ("steps_to", -60.0)],
)
def test_training_is_compared_late_and_by_the_steps_to_a_threshold(measure: str, delta: float, tmp_path: Path) -> None:
    """A reaches any accuracy twice as early and ends with 0.02 nats more, 5 tokens less and 10 points more, give or
    take by its seed; its realised KL is twice as much. From 200 steps on a record keeps some of them: the verdict
    is that of the records."""
    threshold = "\n    threshold: 40" if measure == "steps_to" else ""
    said = text(up=f"{{at_least: 0.5}}\n    measure: {measure}{threshold}")
    claims, units = read(tmp_path, said.replace("train.steps=2", "train.steps=200, train.validate_every=10"))

    def curves(unit: Unit) -> list[dict[str, Any]]:
        ahead, luck, rows = is_a(unit), 1 + 0.1 * (unit.seed % 2 - 0.5), []
        for step in range(1, 201):
            row = {
                "training/global_step": step,
                "actor/entropy": 0.1 + ahead * 0.02 * luck,
                "response_length/mean": 70 - ahead * 5 * luck + (step - 176) / 50,
                "actor/realised_kl_k3": (0.02 + 0.01 * (step % 3)) * 2**ahead,
                "critic/score/best@4": 0.2,
                "critic/score/best@8": 0.6 + ahead * 0.1 * luck,
            }
            rows.append(row | ({"val-core/average": step / 300 * (1 + ahead)} if step % 10 == 0 else {}))
        return rows

    one = judged(claims, units, facts(units, curves=curves))["up"]
    assert 100 * one.answer.delta == pytest.approx(delta, abs=0.05)
    recorded = judged(claims, units, facts(units, curves=lambda unit: thinned(curves(unit))))["up"]
    assert recorded.answer == one.answer


def test_a_share_of_clipped_tokens_is_compared_with_nothing(tmp_path: Path) -> None:
    said = text(rare="{at_most: 1}\n    measure: clipped").replace("    b: {label: B, objective: grpo_dapo}\n", "")
    claims, units = read(tmp_path, said)
    assert [unit.row.label for unit in units[0]] == ["rare: A"] * 8

    def curves(unit: Unit) -> list[dict[str, Any]]:
        shares = 0.002, 0.004 + 0.001 * (unit.seed % 2)
        return [{"training/global_step": step, "actor/pg_clipfrac": share} for step, share in enumerate(shares, 1)]

    one = judged(claims, units, facts(units, curves=curves))["rare"]
    assert 100 * one.answer.delta == pytest.approx(0.325)
    assert one.verdict is DeltaVerdict.HOLDS


def test_times_that_no_run_lived_to_see_give_no_number(tmp_path: Path) -> None:
    """A collapses at step 50, far from the threshold that B reaches after 120 of 200 steps."""
    said = text(up="{at_most: -5}\n    measure: steps_to\n    threshold: 40")
    claims, units = read(tmp_path, said.replace("train.steps=2", "train.steps=200, train.validate_every=10"))

    def curves(unit: Unit) -> list[dict[str, Any]]:
        return [
            {"training/global_step": step, "val-core/average": 0.0 if is_a(unit) else step / 300 + unit.seed % 2 / 100}
            for step in range(1, 51 if is_a(unit) else 201)
        ]

    known = facts(units, curves=curves, ending=lambda unit: Ending("collapse", 51, "all wrong") if is_a(unit) else None)
    found = judged(claims, units, known)
    assert found["up"].answer.delta == pytest.approx((200 - 120) / 100, abs=0.03), "the rule of the claim"
    assert [texts(shown(found), key)["up"] for key in ("delta", "claim")] == ["censored", "refuted"]
    drawn = json.dumps(claims_chart(list(found.values())).chart.to_dict(), ensure_ascii=False)
    assert '"delta": 0' not in drawn, "the outcome, and no difference"


def test_bases_are_a_random_effect_of_a_claim(tmp_path: Path) -> None:
    """A is ahead by 30 points on four bases and behind by 30 on one: on average over such bases that is open; where it
    is ahead on all of them, it is on average too."""
    said = text(mixed="{at_least: 2}", sure="{at_least: 2}")
    claims, units = read(tmp_path, said.replace("    problems: 9", f"    bases: {{{BASES}}}\n    problems: 9"))

    def chance(unit: Unit) -> float:
        behind = "mixed" in unit.row.label and unit.row.setting.point["base"] == "b0"
        return (0.2 if behind else 0.8) if is_a(unit) else 0.5

    found = judged(claims, units, facts(units, chance))
    assert [one.verdict for one in found.values()] == ["undecided", "holds"]
    mixed = found["mixed"]
    assert len(mixed.answer.question.sample) == 5
    assert mixed.answer.delta == pytest.approx(np.mean(mixed.answer.question.sample))
    half = stats.t.ppf(0.975, 4) * np.std(mixed.answer.question.sample, ddof=1) * (1 + 1 / 5) ** 0.5
    low, high = (f"{100 * (mixed.answer.delta + side * half):.1f}".replace("-", "−") for side in (-1, 1))
    assert f"lies in 95% of cases from {low} to {high} points." in " ".join(shown(found).blocks[0].notes)


def test_the_example_of_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written to a folder of one's own it is loaded beside the claims that ship, planned and judged."""
    page = (Path(__file__).parents[3] / "docs" / "statistics.md").read_text()
    example = page.partition("`experiments/claims.yaml`:\n\n```yaml\n")[2].partition("```")[0]
    write(tmp_path / "experiments" / "claims.yaml", example)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    own = Claims(tuple(claim for claim in load_claims().claims if claim.family == "own-claims-1"))
    units = planned(own, tmp_path / "runs")
    assert [len(part) for part in units] == [16, 16]

    for learns, outcomes in ((0.8, ["holds", "holds"]), (0.5, ["refuted", "not tested"])):
        known = facts(units, lambda unit, learns=learns: 0.5 if "flipped" in unit.row.label else learns)
        verdicts = {name: one.verdict for name, one in judged(own, units, known).items()}
        assert verdicts == dict(zip(("learns_from_its_reward", "sequence_ratio"), outcomes, strict=True))
