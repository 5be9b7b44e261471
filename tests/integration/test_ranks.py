"""Two ranks, each with an engine of vLLM, and one queue for both."""

import json
from pathlib import Path

import pytest

from tests.integration.commands import ranks

pytestmark = [pytest.mark.disaster, pytest.mark.vllm, pytest.mark.deepspeed]


def test_one_queue_over_two_ranks(tmp_path: Path) -> None:
    """The responses of a group come from both engines, and are those of the group drawn by one of them."""
    for rank in ranks("tests.integration.queue_run", tmp_path):
        rank.end(300)
    one, other = (json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(2))
    given = one.pop("given"), other.pop("given")
    assert one == other
    assert one["numbers"] == one["mixed"]
    assert len(one["numbers"]) == 8
    assert one["tokens"] == one["alone"]
    assert not one["left"]
    needed = set(range(4 * one["consumed"]))
    assert needed <= {*given[0], *given[1]}
    assert not {*given[0]} & {*given[1]}
    for parts in given:
        assert len(needed & {*parts}) > 0.3 * len(needed)
    groups = [{number // 4 for number in parts} for parts in given]
    assert len(groups[0] & groups[1]) > one["consumed"] / 2
