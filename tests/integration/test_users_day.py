"""A new user's day (`tests.integration.users_day`), with one seed."""

from pathlib import Path

import pytest

from tests.integration.users_day import a_day, user_in


@pytest.mark.disaster
def test_a_day(tmp_path: Path) -> None:
    with user_in(tmp_path) as user:
        a_day(user, seed=0)
