"""What TRL, verl and prime-rl give a row (loss and gradient: integration/test_trainer_cells.py)."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.integrations.prime_rl import advantages, loss
from tepo.integrations.trainers import PRIME_RL, TRL, VERL, reads, split
from tepo.objectives import load_objective, names
from tests.support.commands import python


@dataclass
class LossInputs:
    """The fields of prime-rl 0.8's, as its documentation lists them."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = field(default=None)


def response() -> LossInputs:
    """Seven tokens after a prompt of two, as prime-rl cuts them out of a packed sequence."""
    made = torch.Generator().manual_seed(1)
    old = -torch.rand(9, dtype=torch.float64, generator=made) * 2
    new = old + 0.5 * torch.randn(9, dtype=torch.float64, generator=made)
    return LossInputs(new.requires_grad_(), old, None, torch.ones_like(old), torch.arange(9) >= 2)


def test_token_weights():
    inputs = response()
    inputs.loss_weights = torch.linspace(0.1, 2, len(inputs.loss_mask), dtype=torch.float64)
    ratio = (inputs.trainer_logprobs - inputs.inference_logprobs).exp()
    terms = torch.minimum(ratio * inputs.advantages, ratio.clamp(0.8, 1.28) * inputs.advantages)
    out = loss(inputs)
    torch.testing.assert_close(out.loss, -(terms * inputs.loss_weights)[inputs.loss_mask].sum())
    assert all(value.dim() == 0 for value in out.metrics.values())
    assert "actor/pg_loss" in out.metrics


TOKENS = {"average": "tokens"}


def test_a_punishment_by_hand():
    """DAPO's over the last half of 8 tokens: 0, 0.5 and 1 for 4, 6 and 8 tokens; RLOO on what is left."""
    punished = "R - clip((T - 0.5*L)/(0.5*L), 0, 1)"  # DAPO 3.4
    changes = {**TOKENS, "r": punished, "A": "(r - mean_g(r))*G/(G - 1)"}
    found = advantages([1.0, 1.0, 1.0], "rloo", changes, lengths=[4, 6, 8], max_new_tokens=8)
    assert found == pytest.approx([0.75, 0.0, -0.75], abs=1e-15)


def test_what_is_read_and_not_given():
    with pytest.raises(UserError, match="the lengths of the responses"):
        advantages([1.0, 0.0], "opo", TOKENS)
    with pytest.raises(UserError, match="an advantage for each token"):
        advantages([1.0, 0.0], "grpo_dapo", {"A": "R/t"}, lengths=[1, 2])


def test_an_empty_mask_logs_nothing():
    """A response without a token of the policy has a loss of 0 and no metrics, where its largest ratio was -inf."""
    inputs = response()
    inputs.loss_mask = torch.zeros_like(inputs.loss_mask)
    out = loss(inputs)
    assert (out.loss.item(), out.metrics) == (0, {})


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


def test_a_missing_peer_is_named_with_its_command():
    done = python("-c", "import sys; sys.modules['trl'] = None; import tepo.integrations.trl", code=1)
    assert "trl is not installed here" in done.stderr
    assert 'pip install "tepo[trl]"' in done.stderr
