import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tepo.analysis.run_result import RunResult
from tepo.common.errors import UserError
from tepo.evaluation.results import conclude, read_result
from tepo.evaluation.scores import score
from tepo.evaluation.statistics.samples import AVERAGE, MEAN, summarize
from tepo.problems.benchmarks import load_benchmark
from tepo.store.evaluation_result import SAMPLES, save_result
from tepo.store.samples_file import table_of, write_table
from tepo_cli.main import main
from tests.support.answers import compare
from tests.support.answers import samples as rows_of
from tests.support.samplers import ones
from tests.unit.store.conftest import own  # noqa: F401 a fixture
from tests.unit.store.test_run_identity import edit, run_of


def samples() -> object:
    """Twelve problems, four samples each, the first c of which are right at problem c."""
    return table_of([
        {"problem": f"p{p:02}", "sample": k, "extracted": str(k), "correct": k < p % 5, "reason": "", "tokens": 10 + k,
         "finish": "length" if k == p == 3 else "stop", "grader": "g"}
        for p in range(12) for k in range(4)
    ])  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished evaluation with a subset of half of its problems."""
    table = samples()
    write_table(tmp_path / SAMPLES, table)
    half = {"half": score(table.slice(0, 24))}
    save_result(tmp_path, replace(conclude("mine", None, table, "g", {}), subsets=half))
    return tmp_path


def with_half() -> object:
    part = SimpleNamespace(without=tuple(f"p{p:02}" for p in range(6, 12)))
    return replace(load_benchmark("add3"), name="mine", subsets={"half": part})


def test_what_is_quoted_is_what_the_samples_give(folder: Path) -> None:
    first = read_result(folder, with_half())
    assert json.loads(json.dumps(asdict(first))) == json.loads((folder / "result.json").read_text())
    # computed anew
    edit(folder / "result.json", lambda held: held.update(interval=[0.0, 1.0]))
    edit(folder / "result.json", lambda held: held["subsets"].update(other=held["scores"]))
    assert read_result(folder, with_half()) == first
    assert set(first.subsets) == {"half"}
    assert read_result(folder / "nowhere") is None


NAMES = [f"{kind}@{k}" for kind, k in (("avg", 4), ("pass", 2), ("pass", 4), ("maj", 4))] + ["truncated", "mean_tokens"]


@pytest.mark.parametrize("where", ["scores", "half"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.123, float("nan"), None])
def test_no_other_number_is_quoted(value: object, name: str, where: str, folder: Path) -> None:
    edit(folder / "result.json", lambda held: {**held, **held["subsets"]}[where].update({name: value}))
    with pytest.raises(UserError, match=r"damaged|not a result of this version|its samples give") as caught:
        read_result(folder, with_half())
    assert caught.value.where == str(folder / "result.json")


@pytest.mark.parametrize("change", [{"accuracy": 0.9}, {"problems": 6}, {"timeouts": 1}, {"grader": "of today"}])
def test_nor_are_other_facts(change: dict, folder: Path) -> None:
    edit(folder / "result.json", lambda held: held.update(change))
    with pytest.raises(UserError, match=r"not those behind|damaged"):
        read_result(folder)


@pytest.mark.usefixtures("own")
def test_every_command_that_quotes_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = run_of(tmp_path / "store")
    edit(unit.folder.path / "eval" / "add3" / "result.json", lambda held: held.update(accuracy=0.99))
    with pytest.raises(UserError):
        RunResult(unit.folder.path).scores()
    for code, words in (
        (2, ["eval", "-m", unit.id, "add3"]),
        (2, ["train", *unit.overrides, "--evaluate", "--quiet"]),
        (1, ["doctor", "--no-selftest"]),
    ):
        monkeypatch.setattr(sys, "argv", ["tepo", *words, "--store", str(tmp_path / "store")])
        with pytest.raises(SystemExit) as ended:
            main()
        said = "".join(capsys.readouterr())
        assert (ended.value.code, "not those behind" in said, "99.0" in said) == (code, True, False), words


@pytest.mark.parametrize(("seeds", "problems", "per_problem"), [(1, 10, 1), (2, 12, 3), (3, 13, 2)])
def test_any_order_of_the_lines_gives_the_same_bits(seeds: int, problems: int, per_problem: int) -> None:
    chances, benchmarks = {"one": 0.4, "two": 0.6}, ("c", "b", "a")
    frame = rows_of(chances, seeds=seeds, problems=problems, per_problem=per_problem, benchmarks=benchmarks)
    shuffled = frame.sample(frac=1, random_state=seeds)
    one, two = (
        summarize(given, draws=50).sort_values(["row", "benchmark"], ignore_index=True) for given in (frame, shuffled)
    )
    pd.testing.assert_frame_equal(one, two, check_exact=True)
    on = ("a", "b", "c", AVERAGE, MEAN)
    assert repr(compare(frame, "one", on)) == repr(compare(shuffled, "one", on))


@pytest.mark.parametrize("per_problem", [1, 5])
def test_a_finished_evaluation_and_a_table_have_the_same_interval(per_problem: int) -> None:
    """Ten problems or more: `ones-10` sorts before `ones-2`, and the file holds it after."""
    frame = rows_of({"one": 0.4}, seeds=1, problems=12, per_problem=per_problem, benchmarks=("ones",))
    line = summarize(frame).set_index("benchmark").loc["ones"]
    filled = frame.assign(extracted=frame["sample"].astype(str), correct=frame["right"] > 0, finish="stop", tokens=7)
    for rows in (filled, filled.sample(frac=1, random_state=np.random.RandomState(1))):
        result = conclude("ones", ones(12, per_problem), table_of(rows.to_dict("records")), "grader", {})
        assert (result.accuracy, result.interval) == (line["mean"], (line["low"], line["high"]))
