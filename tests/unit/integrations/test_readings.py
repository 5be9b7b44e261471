import pytest

from tepo.common.errors import UserError
from tepo.integrations.trainers import PRIME_RL, TRL, VERL, reads, split
from tepo.objectives import load_objective, names
from tests.support.commands import python


@pytest.mark.parametrize("name", names())
def test_a_reading_needs_no_more_than_is_given(name):
    for peer in (TRL, VERL, PRIME_RL):
        row = split(load_objective(name))[0] if peer is VERL else load_objective(name)
        reading = peer.reading(row)
        if reading is None:
            with pytest.raises(UserError, match="does not give"):
                peer.check(row)
        else:
            peer.check(load_objective(row, reading))
            assert not reading or peer.lacks(row)


def test_tepo_by_covariance_for_verl():
    """TEPO's mask from log-probs and advantages alone (Eq. 18), over the micro-batch: this is said too."""
    row = load_objective("tepo")
    assert reads(row) == {"entropies", "old_entropies"}
    reading = VERL.reading(row)
    assert reading == {"M": "(A > 0) & (-cov_b(logp, A) < -tol)"}
    with pytest.raises(UserError, match="does not give the mini-batch before") as caught:
        VERL.check(load_objective(row, reading), {})
    assert caught.value.fix == "say it here: micro_batch=True"
    VERL.check(load_objective(row, reading), {"mini_batch": True})
    assert PRIME_RL.reading(row) is None  # one response has one advantage: no covariance


@pytest.mark.parametrize("anchor", ["kl_old", "kl_initial"])
def test_an_exact_kl_for_trl(anchor):
    row = load_objective("tepo_kl_all", {"kl": anchor})
    estimate = {"kl_old": "k3(d)", "kl_initial": "k3(logp - logp_initial)"}[anchor]
    assert TRL.reading(row) == {"kl": estimate}


@pytest.mark.parametrize(
    ("changes", "left", "settings"),
    [
        ({}, "c*logp*A", {}),
        ({"J": "c*logp*A - 2*c*H"}, "c*logp*A", {"entropy_coeff": -1.0}),
        ({"J": "H*(c + 1) + (w*A - c) - (logp - logp_initial)*4", "w": "exp(d)"}, "w*A - c", {"entropy_coeff": 1.5}),
        ({"J": "c*logp*A + c*(A > 0)*H"}, "c*logp*A + c*(A > 0)*H", {}),  # a mask: verl has none
        ({"J": "c*logp*A + c*H", "average": "1/(N + B)"}, "c*logp*A + c*H", {}),  # verl has no such average
    ],
)
def test_terms_that_verl_adds(changes, left, settings):
    row = {"formula": {"A": "R - mean_g(R)", "J": "c*logp*A"}, "constants": {"c": 0.5}}
    found, given = split(load_objective(row, changes))
    assert found.digest == load_objective(row, changes | {"J": left}).digest
    assert given.items() >= settings.items()
    assert ("loss_agg_mode" in given) == bool(settings)


@pytest.mark.parametrize(
    ("name", "changes", "read"),
    [
        ("grpo_dapo", {}, set()),
        ("grpo_dapo", {"average": "groups"}, {"group_ids", "counts"}),
        ("grpo_dapo", {"w": "exp(logp - logp_sampler)"}, {"sampler_logprobs"}),
        ("gspo", {}, {"counts"}),
        ("gpg", {}, {"rollout"}),
        ("reinforce_pp", {}, {"rollout", "lengths"}),
        ("gtpo", {}, {"old_entropies", "lengths", "token_advantages"}),
        ("gtpo", {"A": "u - mean_r(u)"}, {"old_entropies", "rollout", "lengths", "token_advantages"}),
        ("opo", {}, {"lengths", "counts"}),
        ("grpo_dapo", {"A": "R - (T > L/2)"}, {"lengths", "limit"}),
        ("clip_cov", {}, {"mini_batch"}),
    ],
)
def test_what_a_row_reads(name, changes, read):
    assert reads(load_objective(name, changes)) == read


@pytest.mark.parametrize(("peer", "command"), [("trl", 'pip install "tepo\\[trl\\]"'), ("verl", 'pip install "verl')])
def test_a_missing_peer_is_named_with_its_command(peer, command):
    done = python("-c", f"import sys; sys.modules[{peer!r}] = None; import tepo.integrations.{peer}", code=1)
    assert "UserError" in done.stderr
    assert f"{peer} is not installed here" in done.stderr
    assert command.replace("\\", "") in done.stderr
