"""Answers that the grader gave up are named wherever verdicts are shown."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tepo.evaluation.result import Result
from tepo.files import write_json
from tepo.problems.benchmarks import load_benchmark
from tepo.sampling.open_sampler import SamplerOptions
from tepo_cli.evaluations import Request, Target, run_evaluations
from tepo_cli.main import app

SCORES = {"avg@2": 0.5, "pass@2": 0.5, "maj@2": 0.5, "truncated": 0.0, "mean_tokens": 3.0}


def test_grade_says_how_many_in_its_last_line(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    rows = [{"gold": "7", "prediction": answer} for answer in (r"\boxed{9^{9^{9^9}}}", r"\boxed{7}", r"\boxed{8}")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = CliRunner().invoke(app, ["grade", str(file), "--timeout", "0.2", "--workers", "1"])
    assert [json.loads(line)["reason"] for line in done.stdout.splitlines()] == ["timeout", "exact", "different"]
    assert done.stderr.startswith("1 of 3 right; 1 ran out of the grader's budget and count as wrong; grader ")
    file.write_text(json.dumps(rows[1]))
    assert CliRunner().invoke(app, ["grade", str(file)]).stderr.startswith("1 of 1 right; grader ")


@pytest.mark.parametrize(("timeouts", "said"), [(3, True), (0, False), (None, False)])
def test_eval_says_how_many_below_its_table(
    timeouts: int | None, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "add3"
    target = Target("package:laptop", {"weights": "w"}, tmp_path, (name,))
    request = Request(target, SamplerOptions(kind="torch"), None, 0, "auto", None, tmp_path)
    benchmark = load_benchmark(name)
    task = {
        "fingerprint": benchmark.fingerprint,
        "grading": benchmark.grading,
        "policy": target.identity,
        "wrap": "auto",
        "thinking": None,
    }
    result = Result(name, 20, 2, 0.5, (0.4, 0.6), SCORES, {}, "g", task, timeouts)
    request.folder(name).mkdir(parents=True)
    write_json(request.folder(name) / "result.json", asdict(result))
    run_evaluations([name], request, quiet=True)
    shown = "add3: 3 of 40 answers ran out of the grader's budget and count as wrong" in " ".join(
        capsys.readouterr().err.split()
    )
    assert shown is said
