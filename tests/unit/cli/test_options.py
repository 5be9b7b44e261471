"""What options mean, once for every command that has them."""

from pathlib import Path

from tepo.studies.plan_studies import plan_all
from tepo_cli.cli_options import row_overrides


def test_data_is_an_override_of_every_row_and_comes_last() -> None:
    assert row_overrides(None, None) == []
    assert row_overrides(["train.steps=2"], "laptop_sparse") == ["train.steps=2", "data=laptop_sparse"]
    words = row_overrides(["data=laptop", "train.steps=2"], "laptop_sparse")
    ((_, units),) = plan_all(["panel-e"], "laptop", store=Path("runs"), overrides=words)
    assert {(unit.config.data.name, unit.config.train.steps) for unit in units} == {("laptop_sparse", 2)}
