import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tepo.analysis.claim_outcomes import judge_claims
from tepo.analysis.claims_table import claims_table
from tepo.common import provenance
from tepo.common.errors import UserError
from tepo.studies.claims import CLAIMS, OWN, check_registered, read_claims
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import folder_of, plan_by_folder, record_study
from tests.support.claims import is_a, text
from tests.support.results import finish
from tests.support.runs import write

ONE = text(first="{at_least: 5}")
TWO = text(first="{at_least: 5}", second="{at_least: 5}")
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
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e", "commit", "--allow-empty", "-qm", "m"],
    ):
        subprocess.run(["git", "-C", str(folder), *words], check=True, env=environment)
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
def file(tmp_path: Path) -> Path:
    write(path := tmp_path / "experiments" / "claims.yaml", ONE)
    return path


@pytest.mark.parametrize("edit", EDITS)
def test_the_commit_of_a_run_holds_the_claim_as_it_reads_today(file: Path, edit: str) -> None:
    now, said = EDITS[edit]
    first = commit(file.parent.parent, "2026-01-02T12:00:00+00:00")
    write(file, now)
    found = check(file, CLAIMS, {"commit": first, "dirty": False})
    assert said in found
    assert bool(said) == bool(found)
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


def test_records_are_written_of_runs_that_began_after_the_claim(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is judged from them is what is judged from the store."""
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    ((name, plan),) = plan_by_folder(["own-claims-1"], "laptop", tmp_path / "runs").items()
    ((_, units),) = plan
    for unit in units:
        finish(unit, 0.8 if is_a(unit) else 0.5)  # on 2026-01-02 at 10:00
    with pytest.raises(UserError, match=f"(?s)a run of the claim first is of no commit.*{units[0].id}"):
        record_study(folder_of(name), plan)
    assert not folder_of(name).exists()
    commit(tmp_path, "2026-01-02T09:00:00+00:00")
    assert record_study(folder_of(name), plan).recorded == 16
    assert folder_of(name) == tmp_path / "records" / "own-claims-1"
    claims, tables = read_claims(file, OWN), []
    for store, records in (("runs", False), ("empty", True)):
        ((_, plan),) = plan_by_folder([name], "laptop", tmp_path / store).items()
        plan, facts = read_facts(plan, records=records)
        tables.append(claims_table(judge_claims(claims, {study.name: units for study, units in plan}, facts), ()))
    stored, recorded = tables
    assert recorded.blocks == stored.blocks
    assert "holds" in [cell.text for cell in recorded.blocks[0].rows[0].cells]
    assert "16 of 16 runs read from records, not from the store." in recorded.notes
