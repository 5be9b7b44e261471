"""What options mean, once for every command that has them."""

from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo_cli.cli_options import Asked


def test_data_is_an_override_of_every_row_and_comes_last() -> None:
    assert Asked().overrides == []
    asked = Asked(override=["data=laptop", "train.steps=2"], data="laptop_sparse", store=Path("runs"))
    ((_, units),) = asked.plan(["panel-e"])
    assert {(unit.config.data.name, unit.config.train.steps) for unit in units} == {("laptop_sparse", 2)}


def test_seeds_are_integers() -> None:
    assert Asked(seeds="0,3").chosen_seeds == [0, 3]
    with pytest.raises(UserError, match="not a list of seeds"):
        _ = Asked(seeds="a,b").chosen_seeds
