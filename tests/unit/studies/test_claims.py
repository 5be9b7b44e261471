import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tepo.analysis.claim_outcomes import judge_claims
from tepo.analysis.claims_table import claims_table
from tepo.common import paths, provenance
from tepo.common.errors import UserError
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.splits import split_of
from tepo.studies.claims import CLAIMS, OWN, check_registered, load_claims, read_claims, study_of
from tepo.studies.plan import make_plan
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import measured_studies, read_facts
from tepo.studies.record_runs import folder_of, plan_by_folder, record_study, recorded_names
from tepo.studies.study import load_study, study_names
from tests.support.claims import BASES, is_a, text
from tests.support.results import finish
from tests.support.runs import write

ONE, TWO = text(first="{at_least: 5}"), text(first="{at_least: 5}", later="{at_least: 5}")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file of claims."""
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return write(tmp_path / "experiments/claims.yaml", TWO)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{at_least: 5}", "{between: [2, -2]}", "two rising ends"),
        (", 107]", "]", "fewer than 8 seeds"),
        (", 107]", ", 107]\n    bases: {a: [train.warmup_steps=1]}", "fewer than 5 bases"),
        ("objective: grpo_dapo", "objective: grpo_dap", "did you mean 'grpo_dapo'"),
        ("train.steps=2", "seed=2", "seed cannot be an override"),
        ("name: later", "name: active_clip", "two claims are named 'active_clip'"),
    ],
)
def test_mistakes_name_file_line_and_key(own: Path, old: str, new: str, message: str) -> None:
    assert old in TWO
    own.write_text(TWO.replace(old, new, 1))
    with pytest.raises(UserError, match="(?s)" + message) as error:
        load_claims()
    assert f"{own}:" in str(error.value)


def test_a_bad_draft_stops_what_wants_its_claims_alone(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text(TWO.replace("sentence", "sentense"))
    store = tmp_path / "runs"
    assert [study.name for study, _ in plan_all(["active_clip"], "laptop", store=store)] == ["active_clip"]
    assert len(plan_by_folder(["claims-1"], "laptop", store)["claims-1"]) > 1
    assert "claims-1" in recorded_names("laptop")
    write(store / "run/config.json", "{}")
    assert measured_studies("single_gpu", store) == []
    assert "claims are left out: " in capsys.readouterr().err
    with pytest.raises(UserError, match=r"claims\.yaml"):
        plan_all(["first"], "laptop", store=store)
    with pytest.raises(UserError, match=r"claims\.yaml"):
        plan_by_folder(["own-claims-1"], "laptop", store)


def test_claims_of_ones_own_stand_beside_those_that_ship(own: Path, tmp_path: Path) -> None:
    """They are families of their own, with folders of records of their own, whatever their batch is called."""
    own.write_text("batches: {1: fixed order}\n" + TWO)
    *shipped, first, later = load_claims().claims
    assert (shipped[0].name, shipped[0].family, first.family) == ("active_clip", "claims-1", "own-claims-1")
    assert ([one.name for one in (first, later)], first.in_order) == (["first", "later"], True)
    assert {claim.family for claim in shipped if claim.in_order} == {"claims-6"}
    assert not any(claim.file == own for claim in shipped)
    assert folder_of("own-claims-1") == tmp_path / "records" / "own-claims-1"
    assert folder_of("claims-1") == paths.shipped("experiments").parent / "records" / "claims-1"
    ((name, plan),) = plan_by_folder(["own-claims-1"], "laptop", tmp_path / "runs").items()
    assert (name, [study.name for study, _ in plan]) == ("own-claims-1", ["first", "later"])


SHOWN = ("smaller_step", "tuned_again", "bases", "long_sparse")  # made of runs of claims, and choose nothing by them


def test_the_shipped_claims_use_seeds_and_problems_of_their_own() -> None:
    used: dict[str, set[int]] = {"laptop": set(load_study("tuned_again").scales["laptop"].tune.seeds)}
    for study in (load_study(name) for name in study_names() if name not in SHOWN):
        for name, scale in study.scales.items():
            used.setdefault(name, set()).update(scale.seeds)
    drawn = {one.seed for name in paths.names("evals") if (one := load_benchmark(name).procedural)}
    for claim in load_claims().claims:
        assert not used[claim.scale] & set(claim.seeds)
        assert claim.problems not in drawn


def test_a_claim_is_a_study_that_shares_runs_with_others(tmp_path: Path) -> None:
    """At the shipped settings the baseline of a claim is the run of Table 1 at its seed, measured on new problems."""
    claim = next(claim for claim in load_claims().claims if claim.name == "clip_cov")
    units = make_plan(study_of(claim), "laptop", store=tmp_path)
    table = make_plan(load_study("table1"), "laptop", store=tmp_path, seeds=claim.seeds)
    assert len(units) == 2 * len(claim.seeds)
    same = [unit.id for unit in table if unit.row.label == "w. GRPO/DAPO"]
    assert [unit.id for unit in units[: len(same)]] == same
    assert units[0].config.data.benchmarks == [f"{name}:problems7101" for name in table[1].config.data.benchmarks]


def test_claims_keep_their_seeds_and_settings_beside_other_studies(own: Path, tmp_path: Path) -> None:
    words = ("train.steps=3", "data.benchmarks=[max4]")
    *claimed, panel = plan_all(["claims", "table4"], "laptop", store=tmp_path, seeds=[5], overrides=words)
    (units,) = (units for study, units in claimed if study.name == "first")
    assert {(unit.seed, unit.config.train.steps) for unit in units} == {(seed, 2) for seed in range(100, 108)}
    assert units[0].config.data.benchmarks == ["add3:problems9"]
    assert {(unit.seed, unit.config.train.steps) for unit in panel[1]} == {(5, 3)}


def test_a_claim_is_run_at_its_own_scale(own: Path, tmp_path: Path) -> None:
    own.write_text(TWO.replace("    rule:", "    scale: single_gpu\n    rule:", 1))
    for scale, own_ones in (("laptop", {"later"}), ("single_gpu", {"first"})):
        names = {study.name for study, _ in plan_all(["claims"], scale, store=tmp_path)}
        assert names & {"first", "later"} == own_ones
    ((_, units),) = plan_all(["first"], "laptop", store=tmp_path)
    assert {unit.config.scale for unit in units} == {"single_gpu"}


def test_a_claim_over_bases_is_run_from_each_of_them(tmp_path: Path) -> None:
    said = ONE.replace("    problems: 9", f"    bases: {{{BASES}}}\n    problems: 9")
    (claim,) = read_claims(write(tmp_path / "claims.yaml", said)).claims
    units = make_plan(study_of(claim), "laptop", store=tmp_path)
    assert len({unit.id for unit in units}) == 2 * 8 * 5


def test_new_problems_are_of_the_test_split_and_mostly_others() -> None:
    old, new = load_benchmark("add3"), load_benchmark("add3:problems9")
    prompts = {problem.prompt for problem in new.load_problems()}
    assert len(prompts) == old.count
    assert {split_of(prompt) for prompt in prompts} == {"test"}
    assert len(prompts & {problem.prompt for problem in old.load_problems()}) < 0.05 * old.count
    assert new.fingerprint != old.fingerprint
    assert new.name == "add3:problems9"
    for name in ("add3:problems", "add3:problems07", "add3:2811", "aime24:problems9"):
        with pytest.raises(UserError, match="unknown variant"):
            load_benchmark(name)


# registered: the runs began after the claim was written ---------------------------------------------------------------
EDITS = {  # of the file after the runs: and what is said then; empty where they still count
    "as it was": (ONE, ""),
    "what follows": (ONE + "    means: So be it.\n    note: Beside it.\n    by_its_first_rule: undecided\n", ""),
    "another batch": (ONE + text(batch=2, second="{at_least: 5}").removeprefix("claims:\n"), ""),
    "the region": (ONE.replace("at_least: 5", "at_least: 4"), "does not hold the claim"),
    "a seed": (ONE.replace(", 107]", ", 108]"), "does not hold the claim"),
    "the batch": (TWO, "does not hold the claim and its batch"),
    "the order": ("batches: {1: fixed order}\n" + ONE, "does not hold the claim and its batch"),
}


def commit(folder: Path, date: str) -> str:
    environment = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    for words in ("init -q", "add .", "-c user.name=n -c user.email=e commit --allow-empty -qm m"):
        subprocess.run(["git", "-C", str(folder), *words.split()], check=True, env=environment)
    return (provenance.git(folder, "rev-parse", "HEAD") or "").strip()


def check(file: Path, prefix: str, *sessions: dict[str, Any]) -> str:
    """What is said against a run of these sessions; empty where it counts."""
    claim = next(claim for claim in read_claims(file, prefix).claims if claim.name == "first")
    try:
        check_registered(claim, "abc", [{"what": "train", **session} for session in sessions])
    except UserError as error:
        return str(error)
    return ""


@pytest.fixture
def file(own: Path) -> Path:
    """Of one claim."""
    return write(own, ONE)


@pytest.mark.parametrize("edit", EDITS)
def test_the_commit_of_a_run_holds_the_claim_as_it_reads_today(file: Path, edit: str) -> None:
    now, said = EDITS[edit]
    first = commit(file.parent.parent, "2026-01-02T12:00:00+00:00")
    write(file, now)
    found = check(file, CLAIMS, {"commit": first, "dirty": False})
    assert (said in found, bool(found)) == (True, bool(said))
    commit(file.parent.parent, "2026-01-03T12:00:00+00:00")
    assert bool(said) == bool(check(file, OWN, {"started": "2026-01-02T13:00:00+00:00"}))
    assert check(file, OWN, {"started": "2026-01-03T13:00:00+00:00"}) == ""


def test_a_run_of_no_known_or_another_commit_is_no_evidence(file: Path) -> None:
    assert "no commit that is known" in check(file, OWN, {"started": "2026-01-02T13:00:00+00:00"}), "no repository"
    write(file.parent / "other.yaml", "a: 1\n")
    (file.parent / "claims.yaml").rename(file.parent / "away.yaml")
    before = commit(file.parent.parent, "2026-01-01T12:00:00+00:00")
    (file.parent / "away.yaml").rename(file)
    after = commit(file.parent.parent, "2026-01-02T12:00:00+00:00")
    good = {"commit": after, "dirty": False}
    assert check(file, CLAIMS, good) == ""
    assert "differs from its commit" in check(file, CLAIMS, good, {"commit": after, "dirty": True})
    assert f"began at commit {before[:8]}" in check(file, CLAIMS, good, {"commit": before, "dirty": False})
    assert "no commit that is known" in check(file, CLAIMS, {"commit": None, "dirty": None})
    assert "began at commit" in check(file, CLAIMS, {"commit": "0" * 40, "dirty": False})
    assert "no commit that is known" in check(file, OWN, {"started": "2025-01-01T12:00:00+00:00"})
    assert "began at commit" in check(file, OWN, {"started": "2026-01-01T13:00:00+00:00"})


def test_records_are_written_of_runs_that_began_after_the_claim(file: Path, tmp_path: Path) -> None:
    """And what is judged from them is what is judged from the store."""
    ((name, plan),) = plan_by_folder(["own-claims-1"], "laptop", tmp_path / "runs").items()
    ((_, units),) = plan
    for unit in units:
        finish(unit, 0.8 if is_a(unit) else 0.5)  # on 2026-01-02 at 10:00
    with pytest.raises(UserError, match=f"(?s)a run of the claim first is of no commit.*{units[0].id}"):
        record_study(folder_of(name), plan)
    assert not folder_of(name).exists()
    commit(tmp_path, "2026-01-02T09:00:00+00:00")
    assert record_study(folder_of(name), plan).recorded == 16
    claims, tables = read_claims(file, OWN), []
    for store, records in (("runs", False), ("empty", True)):
        ((_, plan),) = plan_by_folder([name], "laptop", tmp_path / store).items()
        plan, facts = read_facts(plan, records=records)
        tables.append(claims_table(judge_claims(claims, {study.name: units for study, units in plan}, facts), ()))
    stored, recorded = tables
    assert recorded.blocks == stored.blocks
    assert "holds" in [cell.text for cell in recorded.blocks[0].rows[0].cells]
    assert "16 of 16 runs read from records, not from the store." in recorded.notes
