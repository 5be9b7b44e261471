import runpy
from pathlib import Path

import pytest

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.reporting.printed import load_table, printed_row
from tests.support.runs import write
from tests.unit.reporting.printed_tables import all_rows, printed


@pytest.mark.parametrize("path", paths.shipped(paths.PAPERS).glob("*/*.csv"), ids=lambda path: path.parent.name)
def test_every_printed_figure_is_a_percentage_and_says_where_it_stands(path: Path) -> None:
    head = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert "arXiv" in head[0]
    assert "https://" in head[1]
    rows = [row for row in load_table(path) if not row.kind.startswith("delta")]
    assert all(0 <= score <= 100 for row in rows for score in row.scores.values() if score is not None)


def test_rows_printed_in_two_tables_agree() -> None:
    for method in ("clip_cov", "kl_cov", "entropy_advantage", "gpg", "gspo", "grpo_dapo", "tepo"):
        assert printed("table1", method).scores == printed("table3", method).scores
    assert printed("table4", "tepo", steps=72, seed=2).scores == printed("table1", "tepo").scores


def test_a_dash_is_missing_and_not_zero() -> None:
    mistral = printed("table2", "tepo", model="Mistral-7B-Instruct-v0.2")
    assert mistral.scores["AIME24"] is None
    assert not mistral.complete
    assert printed("table3", "tepo_kl_all_beta_1").scores["AIME24"] == 0.0


@pytest.mark.parametrize(
    ("table", "method", "message"),
    [("table1", "tpeo", "did you mean 'tepo'"), ("table4", "tepo", "give model, panel, steps or seed")],
)
def test_what_does_not_exist_says_what_does(table: str, method: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        printed(table, method)


PAPER = "# A paper, arXiv 1234.56789\n# https://arxiv.org/abs/1234.56789, Table 2\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method,label,AIME24\na,A,1\n", "begin with two comments"),
        (f"{PAPER}method,label,AIME24\na,A,1.5\nb,B,many\n", "(?s)not a number.*line 5"),
    ],
)
def test_a_broken_table_is_named_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_table(write(tmp_path / "printed.csv", text))


def test_a_paper_that_prints_no_average_has_the_mean_of_its_columns(tmp_path: Path) -> None:
    one = printed_row(write(tmp_path / "one.csv", f"{PAPER}method,label,AIME24\na,A,30\n"), method="a")
    two = printed_row(write(tmp_path / "two.csv", f"{PAPER}method,label,AIME24,AMC\na,A,30,41\n"), method="a")
    assert (one.average, one.averaged, two.average, two.averaged) == (30, False, 35.5, True)


ROOT = Path(__file__).parents[3]
SCRIPT = str(ROOT / "examples/paper_arithmetic.py")


def test_its_output_stands_in_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(SCRIPT, run_name="__main__")
    printed = capsys.readouterr().out
    assert f"```\n{printed}```\n" in (ROOT / "notes/paper-arithmetic.md").read_text()
    follow, of, averages = printed.split()[:3]
    assert f"{follow} {of} the {averages} averages follow" in (ROOT / "docs/paper.md").read_text()


def test_an_average_is_over_samples_and_a_dash_is_zero() -> None:
    average, row = runpy.run_path(SCRIPT)["average"], printed("table1", method="tepo")
    assert average(row) == pytest.approx(32.60, abs=0.005)
    assert sum(row.scores.values()) / 7 == pytest.approx(34.97, abs=0.005)  # 32.59 is printed
    dashed = [row for row in all_rows() if not row.complete]
    assert [round(average(row), 2) for row in dashed] == [2.74, 3.34, 3.66]
    assert all(abs(average(row) - row.average) < 0.04 for row in dashed)
