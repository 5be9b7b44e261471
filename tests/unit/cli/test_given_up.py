import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tepo.evaluation.settings import Settings
from tepo.jobs.measure import Request
from tepo.jobs.weights import Weights
from tepo.sampling.backends import SamplerOptions
from tepo.store.evaluation_result import Result
from tepo.store.run_folder import RunFolder
from tepo_cli.main import app
from tepo_cli.show_scores import show_scores

SCORES = {"avg@2": 0.5, "pass@2": 0.5, "maj@2": 0.5, "truncated": 0.0, "mean_tokens": 3.0}


def test_grade_says_how_many_in_its_last_line(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    rows = [{"gold": "7", "prediction": answer} for answer in (r"\boxed{9^{9^{9^9}}}", r"\boxed{7}", r"\boxed{8}")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = CliRunner().invoke(app, ["data", "grade", str(file)])
    assert [json.loads(line)["reason"] for line in done.stdout.splitlines()] == ["too much work", "exact", "different"]
    assert done.stderr.startswith("1 of 3 right; 1 ran out of the grader's budget and count as wrong; grader ")
    file.write_text(json.dumps(rows[1]))
    assert CliRunner().invoke(app, ["data", "grade", str(file)]).stderr.startswith("1 of 1 right; grader ")


@pytest.mark.parametrize(("timeouts", "said"), [(3, True), (0, False), (None, False)])
def test_eval_says_how_many_below_its_table(
    timeouts: int | None, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings({"weights": "w"})
    request = Request(Weights("package:laptop", "w"), SamplerOptions(kind="torch"), settings, RunFolder(tmp_path))
    result = Result("add3", 20, 2, 0.5, (0.4, 0.6), SCORES, {}, "g", {}, timeouts)
    show_scores([result], request)
    shown = " ".join(capsys.readouterr().err.split())
    assert ("add3: 3 of 40 answers ran out of the grader's budget and count as wrong" in shown) is said
