import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf.gpu.models import Case, run_config
from perf.gpu.record import Figure, record, supervise
from perf.gpu.small_lm import small_lm
from tepo.training.run import Run


def one_then(error: Exception | None) -> Iterator[Figure]:
    yield Figure("first", "s", 1.0, 2.0, "<=")
    if error:
        raise error


def recorded(path: Path, error: Exception | None = None) -> dict:
    with contextlib.suppress(ValueError):  # it goes on, for the log
        record("part", lambda: one_then(error), path)
    return json.loads(path.read_text())


def test_a_limit_that_must_be_kept() -> None:
    assert Figure("a", "", 1.0, 1.0, "<=").holds
    assert not Figure("a", "", 1.1, 1.0, "<=").holds
    assert not Figure("a", "", 0.9, 1.0, ">=").holds
    assert not Figure("a", "", math.nan, 1.0, "<=").holds
    assert Figure("a", "", 9.0, 1.0).holds
    assert Figure("a", "", 3.0, 2.0).ratio == 1.5


def test_how_a_part_ended_is_recorded_with_what_it_found(tmp_path: Path) -> None:
    assert recorded(tmp_path / "a.json")["state"] == "works"
    missing = recorded(tmp_path / "b.json", ImportError("No module named 'deepspeed'"))
    failed = recorded(tmp_path / "c.json", ValueError("illegal memory access\nsecond line"))
    assert (missing["state"], missing["note"]) == ("missing", "No module named 'deepspeed'")
    assert (failed["state"], failed["note"]) == ("failed", "ValueError: illegal memory access")
    assert [len(found["figures"]) for found in (missing, failed)] == [1, 1]
    assert failed["machine"]["torch"]
    record("part", lambda: iter([Figure("error", "", 3.0, 2.0, "<=")]), tmp_path / "d.json")
    assert json.loads((tmp_path / "d.json").read_text())["state"] == "wrong"


def test_without_its_model_a_part_is_not_run_and_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEPO_MODELS", str(tmp_path))
    record("small_lm", lambda: small_lm("cpu", small=False), tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["state"], found["figures"]) == ("not run", [])
    assert "`tepo model fetch smollm2-135m`, then `tepo model warmstart smollm2-135m-words`" in found["note"]


@pytest.fixture
def finds_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child does not look into the current folder."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.mark.disaster
@pytest.mark.usefixtures("finds_the_tests")
@pytest.mark.parametrize(
    ("way", "state", "note"),
    [("crash", "failed", "exit code 9: last words"), ("hang", "stopped", "stopped after 12 s")],
)
def test_a_part_that_dies_or_hangs_leaves_its_figures(tmp_path: Path, way: str, state: str, note: str) -> None:
    words = ["tests.unit.perf.dying_part", way, str(tmp_path / "part.json")]
    found = supervise(words, "part", tmp_path / "part.json", limit=12 if way == "hang" else 100)
    assert (found["state"], found["note"]) == (state, note)
    assert found == json.loads((tmp_path / "part.json").read_text())
    assert [figure["name"] for figure in found["figures"]] == ["first"]


def test_a_part_that_dies_at_once_says_so(tmp_path: Path) -> None:
    found = supervise(["perf.no_such_module"], "part", tmp_path / "part.json", limit=60)
    assert found["state"] == "failed"
    assert "No module named perf.no_such_module" in found["note"]


def test_a_case_is_a_run_of_the_objective_that_it_names() -> None:
    run = Run(run_config(Case("tiny", 512, 16, 512, False)))
    assert run.objective.name == "tepo"
    assert not run.needs.initial_policy
