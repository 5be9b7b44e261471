"""What a trainer gives and a row reads, the readings that need less, and the page's table."""

import pytest

from tepo.common.errors import UserError
from tepo.integrations.trainers import PRIME_RL, TRL, VERL, WORDS, check_version, reads, split, with_changes
from tepo.objectives import load_objective, names
from tests.integration.commands import python


@pytest.mark.parametrize("name", names())
def test_a_reading_needs_no_more_than_is_given(name):
    for peer in (TRL, VERL, PRIME_RL):
        row = split(load_objective(name)).objective if peer is VERL else load_objective(name)
        reading = peer.reading(row)
        if reading is None:
            with pytest.raises(UserError, match="does not give"):
                peer.check(row)
        else:
            peer.check(with_changes(row, reading))
            assert not reading or peer.lacks(row)


def test_tepo_by_covariance_for_verl():
    """TEPO's mask from log-probs and advantages alone, over the micro-batch."""
    row = load_objective("tepo")
    assert reads(row) == {"entropies", "old_entropies"}
    assert VERL.reading(row) == {"penalty.entropy_change": "covariance", "penalty.scope": "micro_batch"}
    assert PRIME_RL.reading(row) is None  # one response has one advantage: no covariance


@pytest.mark.parametrize(
    ("name", "changes", "read"),
    [
        ("grpo_dapo", {}, set()),
        ("grpo_dapo", {"aggregation.over": "group"}, {"group_ids"}),
        ("grpo_dapo", {"overlong.kind": "filter"}, {"finished"}),
        ("grpo_dapo", {"correction.kind": "truncated"}, {"sampler_logprobs"}),
        ("gspo", {}, {"sequence_weights"}),
        ("gpg", {}, {"rollout"}),
        ("gpg", {"advantage.alpha": "none"}, set()),
        ("reinforce_pp", {}, {"rollout", "lengths"}),
        ("gtpo", {"advantage.statistics": "batch"}, {"old_entropies", "rollout", "lengths"}),
        ("opo", {}, {"lengths", "sequence_weights"}),
        ("grpo_dapo", {"overlong.kind": "punish"}, {"lengths", "limit"}),
        ("clip_cov", {}, {"prepass", "selection"}),
        ("clip_cov", {"weight.scope": "micro_batch"}, {"selection"}),
    ],
)
def test_what_a_row_reads(name, changes, read):
    found = reads(with_changes(name, changes))
    assert found & WORDS.keys() == read


def test_changes_are_checked():
    with pytest.raises(UserError, match="unknown key of surrogate"):
        with_changes("tepo", {"surrogate.lower": 1})
    with pytest.raises(UserError, match="no effect"):
        with_changes("tepo_kl_all", {"penalty.entropy_change": "covariance"})
    assert with_changes("tepo", {"penalty.coefficient": 1}).penalties[0].in_loss == 1


@pytest.mark.parametrize(("peer", "command"), [("trl", 'pip install "tepo\\[trl\\]"'), ("verl", 'pip install "verl')])
def test_a_missing_peer_is_named_with_its_command(peer, command):
    done = python("-c", f"import sys; sys.modules[{peer!r}] = None; import tepo.integrations.{peer}", code=1)
    assert "UserError" in done.stderr
    assert f"{peer} is not installed here" in done.stderr
    assert command.replace("\\", "") in done.stderr


def test_versions():
    check_version("trl", "1.16.3", ("1.16",), "…")
    for other in ("1.17.0", "1.1.6", "2.0.0"):
        with pytest.raises(UserError, match=r"tested with 1\.16\.\*"):
            check_version("trl", other, ("1.16",), "…")
