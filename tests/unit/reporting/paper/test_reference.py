import pytest

from tepo.common.errors import UserError
from tepo.reporting.paper.reference import PAPER_BENCHMARKS, TABLES, RowKey, all_rows, load_table, reference_row


def test_shape_of_the_printed_tables() -> None:
    assert [len(load_table(table)) for table in TABLES] == [18, 9, 22, 9]
    assert len(all_rows()) == 53
    assert all(list(row.scores) == list(PAPER_BENCHMARKS) for row in all_rows())
    assert {row.kind for table in TABLES for row in load_table(table)} == {"row", "mean", "delta_vs_grpo_dapo"}
    assert all(0 <= score <= 100 for row in all_rows() for score in row.scores.values() if score is not None)


def test_rows_printed_in_two_tables_agree() -> None:
    for method in ("clip_cov", "kl_cov", "entropy_advantage", "gpg", "gspo", "grpo_dapo", "tepo"):
        assert (
            reference_row(RowKey("table1", method=method)).scores
            == reference_row(RowKey("table3", method=method)).scores
        )
    assert (
        reference_row(RowKey("table4", method="tepo", steps=72, seed=2)).scores
        == reference_row(RowKey("table1", method="tepo")).scores
    )


def test_a_dash_is_missing_and_not_zero() -> None:
    mistral = reference_row(RowKey("table2", model="Mistral-7B-Instruct-v0.2", method="tepo"))
    assert mistral.scores["aime24"] is None
    assert not mistral.complete
    assert reference_row(RowKey("table3", method="tepo_kl_all_beta_1")).scores["aime24"] == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "table9", "method": "tepo"}, "table9"),
        ({"table": "table1", "method": "tpeo"}, "did you mean 'tepo'"),
        ({"table": "table1", "method": "tepo", "model": "Qwen3-14b"}, "did you mean 'Qwen3-14B'"),
        ({"table": "table3", "method": "tepo", "panel": "A"}, "panel of table3 .*\n.*\n.*valid: E"),
        ({"table": "table4", "method": "tepo"}, "give panel, steps or seed"),
    ],
)
def test_what_does_not_exist_says_what_does(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        reference_row(RowKey(**arguments))
