"""Claims: what their file may say, the study behind each, the dates, and verdicts that wait for all runs."""

import json
import math
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.splits import split_of
from tepo.reporting.headline import headline
from tepo.reporting.tables.table import Table
from tepo.results.claim_history import ClaimHistory
from tepo.results.claim_outcomes import judge_claims
from tepo.results.claims_table import claim_lines, claims_table
from tepo.results.drawn_axis import environment_blocks
from tepo.results.tables import read_samples, study_table
from tepo.store.records.thinned_metrics import pack, unpack
from tepo.studies.claims import Claims, load_claims, study_of
from tepo.studies.plan import make_plan
from tepo.studies.plan_studies import plan_all, plan_studies
from tepo.studies.study import load_study, study_names
from tests.integration.commands import tepo
from tests.unit.studies.measured import finish
from tests.unit.training.small import write

CLAIM = """\
  - name: {name}
    sentence: It works
    a: {{label: A, objective: tepo_no_kl}}
    b: {{label: B, objective: grpo_dapo}}
    settings: [train.steps=2, "data.benchmarks=[add3]"]
    rule: fixed here
    expect: [{expect}]
    margin: {margin}
    seeds: {seeds}
    problems: 9
    refuted_by: it does not
"""
REGION = CLAIM.replace("    expect: [{expect}]\n    margin: {margin}\n", "    batch: {batch}\n    region: {region}\n")
LATER = "  - {name: later, sentence: It will work, refuted_by: it does not, needs: a machine}\n"


def text(*names: str, expect: str = "better", margin: str = "5", more: str = LATER) -> str:
    claims = [
        CLAIM.format(name=name, expect=expect, margin=margin, seeds=list(range(100 + 10 * index, 108 + 10 * index)))
        for index, name in enumerate(names)
    ]
    return "claims:\n" + "".join(claims) + more


def regions(first: int, batch: int, **claims: str) -> str:
    """Claims that state regions, with seeds from `first`."""
    return "".join(
        REGION.format(name=name, batch=batch, region=region, seeds=list(range(first + 10 * n, first + 8 + 10 * n)))
        for n, (name, region) in enumerate(claims.items())
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "claims.yaml"
    path.write_text(text("first"))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sentence", "sentense", "sentense.*did you mean 'claims.0..sentence'"),
        ("    refuted_by: it does not\n", "", "refuted_by"),
        ("    rule: fixed here\n", "", "the claim lacks `rule:`"),
        ("    margin: 5\n", "", "the claim lacks `margin:`"),
        ("margin: 5", "margin: 0", "margin"),
        ("margin: 5", "measure: steps_to\n    margin: 5", "`steps_to` and `threshold` belong together"),
        ("margin: 5", "threshold: 40\n    margin: 5", "`steps_to` and `threshold` belong together"),
        ("margin: 5", "measure: steps_to\n    threshold: 40\n    margin: 5", "told by validations"),
        (", 107]", "]", "fewer than 8 seeds"),
        (", 107]", ", 100]", "a seed is listed twice"),
        ("[better]", "[nice]", "expect"),
        ("[better]", "[better, worse, equivalent]", "says nothing"),
        ("    expect: [better]\n", "    batch: 2\n    expect: [better]\n", "the claim lacks `region:`"),
        ("    expect: [better]\n", "    region: {at_least: 2}\n", "`margin:` beside `region:`"),
        ("    expect: [better]\n    margin: 5\n", "    region: {at_least: 2, at_most: 3}\n", "a region is one of"),
        ("    expect: [better]\n    margin: 5\n", "    region: {}\n", "a region is one of"),
        ("    expect: [better]\n    margin: 5\n", "    region: {between: [2, -2]}\n", "two rising ends"),
        ("    expect: [better]\n    margin: 5\n", "    region: {outside: [2]}\n", "two rising ends"),
        (
            "    expect: [better]\n    margin: 5\n",
            "    region: {at_leest: 2}\n",
            "did you mean 'claims.0..region.at_least'",
        ),
        ("claims:\n", "known: {frist: [x]}\nclaims:\n", "did you mean 'first'"),
        ("objective: grpo_dapo", "objective: grpo_dap", "did you mean 'grpo_dapo'"),
        ("train.steps=2", "train.stepps=2", "train.stepps"),
        ("train.steps=2", "seed=2", "seed cannot be an override"),
        ("needs: a machine", "needs: a machine, rule: x", "that `needs:` something"),
        ("name: later", "name: first", "two claims are named 'first'"),
    ],
)
def test_mistakes_name_file_line_and_key(file: Path, old: str, new: str, message: str) -> None:
    assert old in text("first")
    file.write_text(text("first").replace(old, new, 1))
    with pytest.raises(UserError, match="(?s)" + message) as error:
        load_claims(file)
    assert "claims.yaml:" in str(error.value)


SHOWN = ("smaller_step", "tuned_again", "bases", "long_sparse")  # made of runs of claims, and choose nothing by them


def test_the_shipped_claims_use_seeds_and_problems_of_their_own() -> None:
    scales = [scale for name in study_names() if name not in SHOWN for scale in load_study(name).scales.values()]
    used = {seed for scale in scales for seed in scale.seeds}
    used |= {seed for scale in load_study("tuned_again").scales.values() for seed in scale.tune.seeds}
    drawn = {one.seed for name in paths.names("evals") if (one := load_benchmark(name).procedural)}
    claims = load_claims()
    assert claims.testable == list(claims.claims)
    for claim in claims.testable:
        assert not used & set(claim.seeds)
        assert claim.problems not in drawn


def test_the_file_of_claims_is_no_study(tmp_path: Path) -> None:
    assert "claims" not in study_names()
    with pytest.raises(UserError, match="unknown study 'claims'"):
        load_study("claims")


def test_a_claim_is_a_study_that_shares_runs_with_others(tmp_path: Path) -> None:
    """At the shipped settings the baseline of a claim is the run of Table 1 at its seed, measured on new problems."""
    claim = next(claim for claim in load_claims().testable if claim.name == "clip_cov")
    units = make_plan(study_of(claim), "laptop", store=tmp_path)
    table = make_plan(load_study("table1"), "laptop", store=tmp_path, seeds=claim.seeds)
    assert len(units) == 2 * len(claim.seeds)
    same = [unit.id for unit in table if unit.row.label == "w. GRPO/DAPO"]
    assert [unit.id for unit in units[: len(same)]] == same
    assert units[0].config.data.benchmarks == [f"{name}:problems7101" for name in table[1].config.data.benchmarks]


def test_new_problems_are_of_the_test_split_and_mostly_others() -> None:
    old, new = load_benchmark("add3"), load_benchmark("add3:problems9")
    prompts = {problem.prompt for problem in new.load_problems()}
    assert len(prompts) == old.count
    assert {split_of(prompt) for prompt in prompts} == {"test"}
    assert len(prompts & {problem.prompt for problem in old.load_problems()}) < 0.05 * old.count
    assert new.fingerprint != old.fingerprint
    assert new.name == "add3:problems9"
    for name in ("add3:problems", "add3:problems07", "add3:2811"):
        with pytest.raises(UserError, match="has no subsets"):
            load_benchmark(name)
    with pytest.raises(UserError, match="has no subsets"):
        load_benchmark("aime24:problems9")


def commit(folder: Path, date: str) -> None:
    environment = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "m"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True, env=environment)


def test_a_claim_is_registered_since_it_reads_as_it_does(file: Path) -> None:
    assert ClaimHistory.read(file).registered == {"first": None, "later": None}  # no repository
    commit(file.parent, "2026-01-01T12:00:00+00:00")
    file.write_text(text("first", "second"))
    assert ClaimHistory.read(file).registered["second"] is None  # not committed
    commit(file.parent, "2026-01-02T12:00:00+00:00")
    file.write_text(text("first", "second") + "# a comment\n")
    commit(file.parent, "2026-01-03T12:00:00+00:00")
    days = {name: date and date.day for name, date in ClaimHistory.read(file).registered.items()}
    assert days == {"first": 1, "second": 2, "later": 1}
    file.write_text(text("first", "second", margin="4"))  # both change
    assert ClaimHistory.read(file).registered["first"] is None
    commit(file.parent, "2026-01-04T12:00:00+00:00")
    days = {name: date and date.day for name, date in ClaimHistory.read(file).registered.items()}
    assert days == {"first": 4, "second": 4, "later": 1}


def table(claims: Claims, store: Path, chances: Mapping[str, float], leave_out: int = 0) -> Table:
    """With these chances of each claim's A (B: 0.5); the last runs left out."""
    planned = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=store)
    units = [part for _, part in planned]
    for study, part in planned:
        for unit in part[: len(part) - leave_out]:
            finish(unit, chances[study.name] if unit.row.label.endswith("A") else 0.5)
    return claims_table(claims, judge_claims(claims, units), ())


def cells(table: Table) -> dict[str, dict[str, str]]:
    (block,) = table.blocks
    return {
        row.key: {column.key: cell.text for column, cell in zip(block.columns, row.cells, strict=True)}
        for row in block.rows
    }


def test_a_claim_is_judged_when_all_of_its_runs_are_there(file: Path, tmp_path: Path) -> None:
    claims = load_claims(file)
    early = cells(table(claims, tmp_path / "early", {"first": 0.8}, leave_out=1))["first"]
    assert (early["runs"], early["verdict"], early["claim"]) == ("15 of 16", "", "")
    done = cells(table(claims, tmp_path / "done", {"first": 0.8}))
    assert (done["first"]["runs"], done["first"]["verdict"], done["first"]["claim"]) == ("16 of 16", "better", "holds")
    assert done["first"]["registered"] == "unknown: not committed here"
    assert done["first"]["ran"] == "2026-01-02"
    assert done["later"]["claim"] == "not testable yet"


def test_outcomes_and_dates(file: Path, tmp_path: Path) -> None:
    file.write_text(text("up", "down", "same", "close"))
    commit(file.parent, "2026-01-03T12:00:00+00:00")
    found = cells(table(load_claims(file), tmp_path / "runs", {"up": 0.8, "down": 0.2, "same": 0.5, "close": 0.54}))
    assert {name: found[name]["claim"] for name in ("up", "down", "same")} == {
        "up": "holds", "down": "refuted", "same": "refuted",
    }  # fmt: skip
    assert (found["down"]["verdict"], found["same"]["verdict"]) == ("worse", "equivalent")
    assert (found["close"]["claim"], found["close"]["verdict"]) == ("undecided", "undecided")
    assert {name: cell["composite"].partition(" (p ")[0] for name, cell in found.items()} == {
        "up": "holds", "down": "refuted", "same": "refuted", "close": "undecided", "later": "",
    }  # fmt: skip
    assert found["up"]["registered"] == "2026-01-03"
    assert found["up"]["ran"] == "2026-01-02, begun before it was registered"


def test_equivalence_can_be_what_is_claimed(file: Path, tmp_path: Path) -> None:
    file.write_text(text("same", expect="better, equivalent"))
    assert cells(table(load_claims(file), tmp_path / "runs", {"same": 0.5}))["same"]["claim"] == "holds"


def test_entropy_is_compared_at_equal_reward_in_training(file: Path, tmp_path: Path) -> None:
    """A learns twice as fast and has 0.03 nats more at any reward, give or take a hundredth by its seed."""
    file.write_text(text("first").replace("    margin: 5\n", "    measure: entropy\n    margin: 0.5\n"))
    claims = load_claims(file)
    ((_, units),) = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=tmp_path)
    for unit in units:
        finish(unit, 0.5)
        unit.run.metrics_file.unlink()
        ahead = unit.row.label.endswith("A")
        for step in range(20):
            reward = 0.3 + (0.02 if ahead else 0.01) * step
            entropy = 0.5 - reward / 2 + (0.03 + 0.01 * (unit.seed % 2 - 0.5) if ahead else 0.0)
            row = {"training/global_step": step + 1, "critic/score/mean": reward, "actor/entropy": entropy}
            unit.run.append_metrics(row)
    shown = claims_table(claims, judge_claims(claims, [units]), ())
    first = cells(shown)["first"]
    assert (first["verdict"], first["claim"], first["margin"]) == ("better", "holds", "0.5 hundredths of a nat")
    delta = shown.blocks[0].rows[0].cells[0]
    assert delta.mean == pytest.approx(3.0, abs=0.05)
    assert delta.low < delta.mean < delta.high


def lines(rows: list[dict[str, Any]]) -> str:
    """What a run writes step by step, without its wait for the disk at each of them."""
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("measure", "delta"),
    [("measure: late_entropy", 2.0), ("measure: late_length", -5.0), ("measure: late_best", 10.0),
     ("measure: realised_kl", 69.3),
     ("measure: steps_to\n    threshold: 40", -60.0)],
)  # fmt: skip
def test_training_is_compared_late_and_by_the_steps_to_a_threshold(
    measure: str, delta: float, file: Path, tmp_path: Path
) -> None:
    """A reaches any accuracy twice as early and ends with 0.02 nats more, 5 tokens less and 10 points more, give or
    take by its seed; its realised KL is twice as much. From 200 steps on a record keeps some of them: the verdict
    is that of the records."""
    settings = text("first").replace("settings: [", "settings: [train.validate_every=10, ")
    file.write_text(settings.replace("    margin: 5\n", f"    {measure}\n    margin: 0.5\n"))
    claims = load_claims(file)
    ((_, units),) = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=tmp_path)
    for unit in units:
        finish(unit, 0.5)
        rows = []
        ahead, luck = unit.row.label.endswith("A"), 1 + 0.1 * (unit.seed % 2 - 0.5)
        for step in range(1, 201):
            row = {
                "training/global_step": step,
                "actor/entropy": 0.1 + ahead * 0.02 * luck,
                "response_length/mean": 70 - ahead * 5 * luck + (step - 176) / 50,
                "actor/realised_kl_k3": (0.02 + 0.01 * (step % 3)) * 2**ahead,
                "critic/score/best@4": 0.2,
                "critic/score/best@8": 0.6 + ahead * 0.1 * luck,
            }
            if step % 10 == 0:
                row["val-core/average"] = step / 300 * (1 + ahead)
            rows.append(row)
        unit.run.metrics_file.write_text(lines(rows))
    shown = claims_table(claims, judge_claims(claims, [units]), ())
    found = shown.blocks[0].rows[0].cells[0]
    assert found.mean == pytest.approx(delta, abs=0.05)
    for unit in units:
        unit.run.metrics_file.write_text(lines(unpack(pack(unit.run.metrics()))))
    assert claims_table(claims, judge_claims(claims, [units]), ()).blocks[0].rows[0].cells[0] == found


def test_a_run_that_ended_early_was_not_fast(file: Path, tmp_path: Path) -> None:
    """A collapses at step 50, far from the threshold that B reaches after 120 of 200 steps."""
    settings = text("first").replace("train.steps=2", "train.steps=200, train.validate_every=10")
    file.write_text(settings.replace("    margin: 5\n", "    measure: steps_to\n    threshold: 40\n    margin: 0.5\n"))
    claims = load_claims(file)
    ((_, units),) = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=tmp_path)
    for unit in units:
        finish(unit, 0.5)
        ahead = unit.row.label.endswith("A")
        unit.run.metrics_file.write_text(lines([
            {"training/global_step": step, "val-core/average": 0.0 if ahead else step / 300 + unit.seed % 2 / 100}
            for step in range(1, 51 if ahead else 201)
        ]))  # fmt: skip
        if ahead:
            unit.run.mark("finished", steps=50, ending={"kind": "collapse", "step": 51, "why": "all wrong"})
    (block,) = claims_table(claims, judge_claims(claims, [units]), ()).blocks
    assert block.rows[0].cells[0].mean == pytest.approx(200 - 120, abs=3)
    assert "16 runs, 8 of A ended early. " in block.notes[0]


@pytest.mark.slow
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "experiments/claims.yaml", text("first"))
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    shown = tepo("claims", "--store", tmp_path / "runs", "--format", "csv")
    assert "0 of 16" in shown.stdout
    assert "not testable yet" in shown.stdout
    wrong = tepo("claims", "later", "--run", "--store", tmp_path / "runs", code=2)
    assert "unknown claim that can be run 'later'" in wrong.stderr


def test_what_follows_may_be_written_after_the_runs(file: Path) -> None:
    commit(file.parent, "2026-01-01T12:00:00+00:00")
    file.write_text(text("first").replace("    rule:", "    means: So be it.\n    rule:"))
    assert load_claims(file).testable[0].means == "So be it."
    before = ClaimHistory.read(file).registered["first"]
    assert before.day == 1


def test_claims_keep_their_seeds_and_settings_beside_other_studies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "experiments/claims.yaml", text("first"))
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    words = ("train.steps=3", "data.benchmarks=[max4]")
    (_, claimed), (_, panel) = plan_all(["claims", "table4"], "laptop", store=tmp_path, seeds=[5], overrides=words)
    assert {unit.seed for unit in claimed} == set(range(100, 108))
    assert {unit.config.train.steps for unit in claimed} == {2}
    assert claimed[0].config.data.benchmarks == ["add3:problems9"]
    assert {(unit.seed, unit.config.train.steps) for unit in panel} == {(5, 3)}


def test_claims_in_words(file: Path, tmp_path: Path) -> None:
    file.write_text(text("close", "up").replace("    rule:", "    means: So be it.\n    rule:"))
    claims = load_claims(file)
    planned = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=tmp_path)
    for study, units in planned:
        for unit in units:
            finish(unit, {"up": 0.8, "close": 0.54}[study.name] if unit.row.label.endswith("A") else 0.5)
    judged = judge_claims(claims, [units for _, units in planned])
    close, up, later = claim_lines(claims, judged)
    one = judged[1].difference
    assert (up.sentence, up.pair, up.outcome, up.unit) == ("It works", "A against B", "holds", "points")
    assert (up.low, up.delta, up.high) == (100 * one.low, 100 * one.delta, 100 * one.high)
    assert up.regions == ((5.0, math.inf),)
    assert "16 runs. Seeds 110, 111, " in up.details
    assert up.details.endswith(" So be it.")
    assert close.outcome == "undecided"
    assert "seeds would" not in close.details
    assert "So be it" not in close.details
    assert "By the composite rule of 2026-11-25: undecided (p " in close.details
    assert (later.outcome, later.details) == ("", "Not testable yet: it needs a machine.")
    notes = " ".join(claims_table(claims, judged, ()).notes)
    assert "Refuted by, where a claim has nothing else: it does not." in notes
    assert "Refuted by" not in " ".join(one.details for one in (close, up, later)), "said once"


def test_a_batch_from_the_second_on_states_regions(file: Path, tmp_path: Path) -> None:
    stated = {
        "up": "{at_least: 2}",
        "down": "{at_least: -2}",
        "same": "{between: [-9, 9]}",
        "far": "{outside: [-9, 9]}",
    }
    file.write_text(text("first", more=regions(200, 2, **stated)))
    found = cells(
        table(load_claims(file), tmp_path / "runs", {"first": 0.8, "up": 0.8, "down": 0.2, "same": 0.5, "far": 0.5})
    )
    assert {name: found[name]["claim"] for name in stated} == {
        "up": "holds", "down": "refuted", "same": "holds", "far": "refuted",
    }  # fmt: skip
    assert all(found[name]["composite"].startswith(f"{found[name]['claim']} (p ") for name in stated)
    assert {found[name]["verdict"] + found[name]["margin"] for name in stated} == {""}
    assert [found[name]["expect"] for name in stated] == [
        "at least +2 points", "at least −2 points", "−9 to +9 points", "below −9 or above +9 points",
    ]  # fmt: skip


def test_another_batch_moves_no_verdict(file: Path, tmp_path: Path) -> None:
    """Not by a hair: all p of the first batch stay, with twenty claims beside it, one of them measured."""
    file.write_text(text("up", "close", more=""))
    chances = {"up": 0.8, "close": 0.54, "c0": 0.5}

    def judged() -> dict[str, tuple[object, ...]]:
        claims = load_claims(file)
        planned = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=tmp_path / "runs")
        for study, units in planned:
            for unit in units if study.name in chances else ():
                finish(unit, chances[study.name] if unit.row.label.endswith("A") else 0.5)
        return {
            one.claim.name: (one.decision, one.composite) for one in judge_claims(claims, [part for _, part in planned])
        }

    alone = judged()
    file.write_text(text("up", "close", more=regions(200, 2, **{f"c{n}": "{at_least: 2}" for n in range(20)})))
    together = judged()
    assert {name: together[name] for name in alone} == alone
    assert together["c0"][1] is not None
    assert together["c1"] == (None, None)


def test_a_batch_has_one_form(file: Path) -> None:
    file.write_text(text("first", more=regions(200, 1, second="{at_least: 2}")))
    with pytest.raises(UserError, match="first has another form") as error:
        load_claims(file)
    assert "claims.yaml:" in str(error.value)


@pytest.mark.disaster  # ten seconds of simulated comparisons
def test_a_claim_that_is_not_run_says_how_many_seeds_would_decide_it(file: Path, tmp_path: Path) -> None:
    """From the spread of the measured one; a narrower region needs more, and a result has no such words."""
    stated = {"wide": "{at_least: 9}", "narrow": "{at_least: 2}"}
    file.write_text(text("first", more=regions(200, 2, **stated)))
    claims = load_claims(file)
    planned = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=tmp_path)
    assert not any(one.seeds_to_decide for one in judge_claims(claims, [units for _, units in planned]))
    for unit in planned[0][1]:
        finish(unit, 0.6 if unit.row.label.endswith("A") else 0.5)
    judged = judge_claims(claims, [units for _, units in planned])
    first, wide, narrow = (one.seeds_to_decide for one in judged)
    assert first == ""
    assert wide.endswith(" seeds would decide it with 80% if A and B were equal")
    assert int(wide.split()[0]) < int(narrow.split()[0])
    details = {one.name: one.details for one in claim_lines(claims, judged)}
    assert f"{wide}." in details["wide"]
    assert f"{narrow}." in details["narrow"]


BASES = ", ".join(f"b{number}: [train.warmup_steps={number}]" for number in range(5))  # each a run of its own


def test_bases_are_a_random_effect_of_a_claim(file: Path, tmp_path: Path) -> None:
    """A is ahead by 30 points on four bases and behind by 30 on one: for these five it is ahead, for a new one that is
    open; where it is ahead on all of them, it is for a new one too."""
    one = regions(100, 1, mixed="{at_least: 2}", sure="{at_least: 2}")
    several = re.sub(r"seeds: \[(\d+), (\d+), (\d+).*?\]", rf"seeds: [\1, \2, \3]\n    bases: {{{BASES}}}", one)
    file.write_text("claims:\n" + several)
    claims = load_claims(file)
    planned = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=tmp_path / "runs")
    for study, units in planned:
        assert len(units) == 2 * 5 * 3
        for unit in units:
            behind = study.name == "mixed" and unit.row.setting.point["base"] == "b0"
            finish(unit, 0.5 if not unit.row.label.endswith("A") else 0.2 if behind else 0.8)
    judged = judge_claims(claims, [units for _, units in planned])
    found = cells(claims_table(claims, judged, ()))
    assert (found["mixed"]["claim"], found["sure"]["claim"]) == ("undecided", "holds")
    mixed = judged[0].difference
    assert mixed is not None
    assert mixed.seeds == 5
    study, units = planned[0]
    (block,) = environment_blocks(study, "laptop", units, read_samples(units))
    these, new, between = block.rows[0].cells
    assert these.mean == new.mean == pytest.approx(100 * mixed.delta)
    assert these.low > 0 > new.low == pytest.approx(100 * mixed.low)
    assert float(between.text) > 20
    tables = [study_table(study, "laptop", units) for study, units in planned[:2]]
    assert all("Loss" not in block.title for table in tables for block in table.blocks), "nobody chooses a base"
    undecided, above = map(headline, tables)
    assert undecided == "For a new base mixed: A cannot be told apart from mixed: B, by intervals"
    assert above == "For a new base sure: A lies above sure: B, none below, by intervals"
    for unit in planned[1][1]:
        if unit.row.label.endswith("B"):
            unit.run.mark("finished", steps=1, ending={"kind": "collapse", "step": 2, "why": "all wrong"})
    notes = claims_table(claims, judge_claims(claims, [units for _, units in planned]), ()).blocks[0].notes
    assert "30 runs, 15 of B ended early. " in notes[1]


def test_a_claim_over_bases_needs_five_of_them(file: Path) -> None:
    one = regions(100, 1, few="{at_least: 2}")
    file.write_text("claims:\n" + one + "    bases: {a: [train.warmup_steps=1], b: [train.warmup_steps=2]}\n")
    with pytest.raises(UserError, match="fewer than 5 bases"):
        load_claims(file)


def test_a_claim_over_bases_is_not_priced_by_the_spread_of_seeds(file: Path, tmp_path: Path) -> None:
    """One that is measured over seeds says how many seeds another needs, and nothing of the number of bases."""
    over_bases = re.sub(
        r"seeds: \[(\d+), (\d+), (\d+).*?\]",
        rf"seeds: [\1, \2, \3]\n    bases: {{{BASES}}}",
        regions(200, 1, bases="{at_least: 2}"),
    )
    file.write_text("claims:\n" + regions(100, 1, done="{at_least: 2}", planned="{at_least: 2}") + over_bases)
    claims = load_claims(file)
    planned = plan_studies([study_of(claim) for claim in claims.testable], "laptop", store=tmp_path / "runs")
    for unit in planned[0][1]:
        finish(unit, 0.5)
    done, seeds, bases = judge_claims(claims, [units for _, units in planned])
    assert done.difference
    assert seeds.seeds_to_decide
    assert bases.seeds_to_decide == ""
