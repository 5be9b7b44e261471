import json
from pathlib import Path

import pytest
import yaml

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.evaluation.regrade import regrade
from tepo.jobs.measure import Request, measure
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.grader import Grader
from tepo.store.evaluation_result import Result
from tepo.store.run_folder import RunFolder
from tepo.store.samples_file import read_table
from tepo.studies.plan_studies import plan_all
from tepo.training.run import Run
from tests.support.runs import write

DECLARED = {"title": "mine", "dataset": {"path": "mine.jsonl"}, "count": 4, "samples": 1}
DECLARED |= {"temperature": 1.0, "max_new_tokens": 40}
ROWS = [
    {"id": f"m{number}", "problem": f"{number}+{number}=", "answer": str(2 * number)} for number in (111, 222, 333, 444)
]
STUDY = (
    "title: s\nrows:\n  - {label: base, base: true}\n"
    "scales:\n  laptop: {models: [laptop], seeds: [0], overrides: ['data.benchmarks=[mine]']}\n"
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on TEPO_PATH with the benchmark `mine` and the study `study` on it."""
    write(tmp_path / "experiments" / "study.yaml", STUDY)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    monkeypatch.delenv("TEPO_DATA", raising=False)
    declare(tmp_path)
    return tmp_path


def declare(folder: Path, rows: list[dict] = ROWS, **changes: object) -> None:
    write(folder / "evals" / "mine.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    (folder / "evals" / "mine.yaml").write_text(yaml.safe_dump(DECLARED | changes))


def test_the_fingerprint_is_of_the_rows_wherever_they_lie(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_benchmark("mine").fingerprint
    assert [problem.id for problem in load_benchmark("mine").load_problems()] == ["m111", "m222", "m333", "m444"]
    (own / "evals" / "sub").mkdir()
    (own / "evals" / "mine.jsonl").rename(own / "evals" / "sub" / "other.jsonl")
    (own / "evals" / "mine.yaml").write_text(yaml.safe_dump(DECLARED | {"dataset": {"path": "sub/other.jsonl"}}))
    assert load_benchmark("mine").fingerprint == before
    (own / "evals" / "mine.yaml").write_text(yaml.safe_dump(DECLARED | {"dataset": {"path": "json", "file": "other"}}))
    monkeypatch.setenv("TEPO_DATA", str(own / "evals" / "sub"))
    assert load_benchmark("mine").fingerprint == before
    for row, changes in (
        ({"answer": "1"}, {}),
        ({"id": "n"}, {}),
        ({"problem": "111+111= "}, {}),
        ({}, {"samples": 2}),
    ):
        declare(own, [ROWS[0] | row, *ROWS[1:]], **changes)
        assert load_benchmark("mine").fingerprint != before


def test_a_stored_result_of_another_definition_is_refused(own: Path) -> None:
    """Until it is defined as it was, or graded again."""
    store = own / "runs"
    config = compose(["data.benchmarks=[mine]", f"store={store}"])

    def measured() -> list[Result]:
        return measure(Request.of(Run(config), trained=False), ["mine"])

    def refused(message: str) -> None:
        for ask in (measured, lambda: plan_all(["study"], "laptop", store=store)):
            with pytest.raises(UserError, match=message):
                ask()

    (result,) = measured()
    declare(own, [ROWS[0] | {"answer": "223"}, *ROWS[1:]])
    refused("another definition of the benchmark")
    declare(own)
    assert measured() == [result]
    plan_all(["study"], "laptop", store=store)
    declare(own, grader={"fallbacks": ["bare"]})
    refused("graded under other settings")
    with Grader(load_benchmark("mine").grader) as grader:
        regrade(RunFolder.of_base(config).evaluation("mine"), grader)
    (again,) = measured()
    assert again.accuracy >= result.accuracy
    plan_all(["study"], "laptop", store=store)


def test_protocols_share_no_result(own: Path) -> None:
    names = ["mine", "mine:top_k1", "mine:deepseek_r1:tokens40:samples1"]
    config = compose([f"data.benchmarks=[{','.join(names)}]", f"store={own / 'runs'}"])
    results = measure(Request.of(Run(config), trained=False), names)
    tasks = [result.task for result in results]
    assert [task["benchmark"] for task in tasks] == names
    assert len({task["fingerprint"] for task in tasks}) == 3
    folders = RunFolder.of_base(config).evaluations
    logprobs = {name: sum(read_table(folders / name / "samples.parquet")["logprob"].to_pylist()) for name in names}
    assert logprobs["mine:top_k1"] == 0 > logprobs["mine"]  # of the distribution that they are drawn from
