"""Wordings of claims through the commits of a repository, and hashes of batches."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from tepo.analysis.claim_history import ClaimHistory, Stamp
from tests.integration.commands import tepo
from tests.unit.studies.test_claims import commit, regions, text
from tests.unit.training.small import write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A claim that is needed, then can be run, then changed, then renamed away; and a second batch that grows."""
    path = tmp_path / "experiments" / "claims.yaml"
    first = "claims:\n  - {name: old, sentence: It may, refuted_by: it does not, needs: a machine}\n"
    write(path, first)
    commit(tmp_path, "2026-01-01T12:00:00+00:00")
    write(path, text("first", more=regions(200, 2, second="{at_least: 2}")))
    commit(tmp_path, "2026-01-02T12:00:00+02:00")
    write(path, "claims: [broken\n")
    commit(tmp_path, "2026-01-03T12:00:00+00:00")
    write(path, text("first", margin="4", more=regions(200, 2, second="{at_least: 2}", third="{at_most: 1}")))
    commit(tmp_path, "2026-01-04T12:00:00+00:00")
    return path


def test_each_wording_stands_there_with_its_commit(file: Path) -> None:
    history = ClaimHistory.read(file)
    assert history.names == ["first", "second", "third", "old"]
    words = ["git", "-C", str(file.parent), "log", "--format=%h", "--abbrev=8"]
    newest, _, second, oldest = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert history.lines("old") == [
        f"2026-01-01 12:00  {oldest}  stated", "    sentence: It may", "    refuted_by: it does not",
        "    needs: a machine", f"2026-01-02 10:00  {second}  removed",
    ]  # fmt: skip
    lines = history.lines("first")
    assert lines[0] == f"2026-01-02 10:00  {second}  stated"
    assert "    margin: 5" in lines
    assert lines[-5:] == [
        f"2026-01-04 12:00  {newest}  changed", "    margin", "        was  5", "        is   4",
        "batch 1: registered 2026-01-02 10:00, changed 1 time since, frozen since 2026-01-04 12:00",
    ]  # fmt: skip


def test_a_batch_that_grew_says_so(file: Path) -> None:
    history = ClaimHistory.read(file)
    assert [history.is_late(name) for name in ("first", "second", "third")] == [True, False, True]
    assert [f"{date:%d}" for date in history.batch_dates(2)] == ["02", "04"]
    assert history.batch_dates(3) == []


def test_what_is_not_committed_is_the_last_change(file: Path) -> None:
    write(file, file.read_text().replace("margin: 4", "margin: 3"))
    assert ClaimHistory.read(file).lines("first")[-5:-1] == [
        "not committed  changed", "    margin", "        was  4", "        is   3",
    ]  # fmt: skip


def test_a_file_keeps_its_history_under_another_name(file: Path, tmp_path: Path) -> None:
    before = ClaimHistory.read(file)
    moved = tmp_path / "päper" / "claims.yaml"
    moved.parent.mkdir()
    subprocess.run(["git", "-C", str(tmp_path), "mv", str(file), str(moved)], check=True)
    commit(tmp_path, "2026-01-05T12:00:00+00:00")
    after = ClaimHistory.read(moved)
    assert after.registered == before.registered
    assert {name: after.lines(name) for name in after.names} == {name: before.lines(name) for name in before.names}


def test_a_note_beside_the_claims_dates_none_of_them_anew(file: Path) -> None:
    before = ClaimHistory.read(file)
    write(file, file.read_text() + "known:\n  first: [It was seen before.]\n")
    after = ClaimHistory.read(file)
    assert after.registered == before.registered
    assert Stamp.of(after.now, 1) == Stamp.of(before.now, 1)


def test_the_hash_of_a_batch_can_be_made_by_hand(file: Path) -> None:
    now = ClaimHistory.read(file).now
    lines = ""
    for name in ("second", "third"):
        canonical = json.dumps(now.claims[name], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        lines += f"{hashlib.sha256(canonical.encode()).hexdigest()}  {name}\n"
    stamp = Stamp.of(now, 2)
    assert (stamp.lines, stamp.hash) == (lines, hashlib.sha256(lines.encode()).hexdigest())
    write(file, file.read_text().replace("    rule: fixed here\n", "    means: So be it.\n    rule: fixed here\n"))
    assert Stamp.of(ClaimHistory.read(file).now, 2) == stamp  # it may be written after the runs
    write(file, file.read_text().replace("{at_least: 2}", "{at_least: 1}"))
    assert Stamp.of(ClaimHistory.read(file).now, 2) != stamp


@pytest.mark.slow
def test_the_commands(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    write(file, file.read_text() + "known:\n  first: [It was seen before.]\n")
    store = ("--store", tmp_path / "runs")
    shown = tepo("claims", "--history", *store).stdout
    assert shown.index("first\n") < shown.index("third\n") < shown.index("old\n")
    assert "  noted afterwards:\n      It was seen before.\n" in shown
    assert "\nthird" not in tepo("claims", "first", "--history", *store).stdout
    assert "did you mean 'third'" in tepo("claims", "thrid", "--history", *store, code=2).stderr
    stamp = Stamp.of(ClaimHistory.read(file).now, 2)
    assert f"git tag -s claims-2 -m {stamp.hash}" in tepo("claims", "--stamp", "2").stdout
    assert "unknown batch '3'" in tepo("claims", "--stamp", "3", code=2).stderr
    assert "three commands" in tepo("claims", "--stamp", "2", "--history", code=2).stderr


@pytest.mark.slow
def test_without_a_repository_a_history_needs_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "experiments/claims.yaml", text("first"))
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    assert "in a checkout" in tepo("claims", "--history", "--store", tmp_path / "runs", code=2).stderr
    assert "git tag" in tepo("claims", "--stamp", "1").stdout
