"""Advantages, selected tokens, loss, gradient and metrics of batches written by hand. Splits and ranks are
asked by the checks of every row."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.objectives import Groups, Loss, Objective, TokenBatch, load_objective, names
from tepo.objectives.functions import RUN, draws, tail_tokens
from tepo.objectives.scope import Scope
from tepo.objectives.testing.case import TabularCase, make_case
from tests.invariants.rows import PPO
from tests.unit.objectives.flat import by_hand, coefficients, loss_of, tensor


def token(J: str, **lines: Any) -> Objective:
    """Means over tokens of J, of the ratio w (the token's, or another) and the advantage A, with PPO's bounds."""
    return load_objective("grpo_dapo", {"J": J, **lines})


# ratios ---------------------------------------------------------------------------------------------------------------
GEOMETRIC = 1.62 ** (1 / 3)
PREFIX = [1.2, math.sqrt(1.08), GEOMETRIC]
LINE_21 = "sg(exp(mean_i(d)))*(1 + (d - sg(d))/T)"


@pytest.mark.parametrize(
    ("w", "ratios", "weights"),
    [
        (LINE_21, [GEOMETRIC] * 3, [GEOMETRIC / 3] * 3),  # Algorithm 1, line 21 divides by the length (A7)
        # the full gradient of token j is the sum of p_t/t over t >= j
        ("exp(prefix_mean_i(d))", PREFIX, [sum(PREFIX[t] / (t + 1) for t in range(j, 3)) for j in range(3)]),
        ("clip(exp(d), sg(mean_i(exp(d))) - 0.1, 2)", [1.2, 1.1, 1.5], [1.2, 0.0, 1.5]),  # a bound of each response
    ],
)
def test_ratios(w, ratios, weights):
    objective, batch = token("w*A", w=w), by_hand([1.2, 0.9, 1.5, 0.8], [2.0, 2.0, 2.0, -1.0], [3, 1])
    assert loss_of(objective, batch).tokens["ratio"].tolist() == pytest.approx([*ratios, 0.8])
    assert coefficients(objective, batch) == pytest.approx([*(2 * weight for weight in weights), -0.8])


def test_exp_stops_at_20_from_above():
    """e^20 without a gradient beyond, as in verl; below there is no bound: e^-21 is small, and its slope is."""
    batch = by_hand([math.exp(19.0), math.exp(21.0), math.exp(-21.0), math.exp(-19.0)], [1.0] * 4, [2, 2])
    objective = token("w*A")
    out = loss_of(objective, batch)
    assert out.tokens["log_ratio"].tolist() == pytest.approx([19.0, 21.0, -21.0, -19.0])
    assert out.tokens["ratio"].log().tolist() == pytest.approx([19.0, 20.0, -21.0, -19.0])
    assert (coefficients(objective, batch) / out.tokens["ratio"]).tolist() == pytest.approx([1.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_token_that_neither_policy_can_draw_has_ratio_1(dtype):
    """log 0 is a finite floor on both sides, though beyond float16's range, and takes no gradient."""
    never = torch.tensor([-math.inf, -1.0], dtype=dtype).requires_grad_()
    batch = TokenBatch(never.detach(), tensor(1.0, 1.0), torch.tensor([2]), never)
    out = loss_of(token("w*A"), batch)
    assert out.tokens["ratio"].tolist() == [1.0, 1.0]
    assert torch.autograd.grad(out.loss, never)[0].tolist() == [0.0, -0.5]


def test_long_prefixes_keep_their_precision_behind_other_responses():
    """The cumulative sum is over the flat batch: in float32 alone a late response would lose its digits."""
    d = torch.cat([torch.full((8000,), 19.0), torch.tensor([0.01, 0.02, 0.03])])
    scope = Scope(TokenBatch(d, d, torch.tensor([8000, 3])), torch.float32)
    assert RUN["prefix_mean_i"](scope, d)[8000:].tolist() == pytest.approx([0.01, 0.015, 0.02], rel=1e-6)


# clips ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("J", "slopes", "gains"),
    [
        (PPO, [0.0, -1.8, -2.2, -3.0, -8.0], [-1.6, -1.8, -2.2, -3.0, -8.0]),
        # Eq. 4 to the letter (A1): no lower bound where A < 0, and the gradient dies above the upper one
        ("min(w, clip(w, 1 - low, 1 + high))*A", [-1.0, -1.8, -2.2, 0.0, 0.0], [-1.0, -1.8, -2.2, -2.56, -2.56]),
        # dual clip bounds the loss where the advantage is negative
        (f"where(A < 0, max({PPO}, 3*A), {PPO})", [0.0, -1.8, -2.2, -3.0, 0.0], [-1.6, -1.8, -2.2, -3.0, -6.0]),
    ],
)
def test_clips(J, slopes, gains):
    objective, batch = token(J), by_hand([0.5, 0.9, 1.1, 1.5, 4.0], [-2] * 5)
    assert coefficients(objective, batch) == pytest.approx(slopes)
    assert loss_of(objective, batch).loss.item() == pytest.approx(-sum(gains) / 5)


def test_sure_tokens_diverge_by_nothing_from_sure_tokens():
    """log pi = 0 on both sides: 0 log 0 must not be a NaN; from a sure token to 0.5 the divergence is large."""
    now = tensor(0.0, math.log(0.5)).requires_grad_()
    batch = TokenBatch(tensor(0.0, 0.0), tensor(1.0, -1.0), torch.tensor([2]), now)
    assert coefficients(load_objective("dppo_kl"), batch) == pytest.approx([1.0, 0.0])


# averages -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("average", "keep", "scales"),
    [  # six tokens in three responses; the empty one counts in neither
        ("responses", "", [1 / 3, 1 / 9, 1 / 9, 1 / 9, 1 / 6, 1 / 6]),
        ("1/(7*B)", "", [1 / 21] * 6),
        ("groups", "", [1 / 8] * 4 + [1 / 4] * 2),  # A9: 4 tokens in one group, 2 in the other
        ("tokens", "finished", [1 / 3, 0, 0, 0, 1 / 3, 1 / 3]),
        ("responses", "finished", [1 / 2, 0, 0, 0, 1 / 4, 1 / 4]),
    ],
)
def test_an_average_divides_by_its_own_count(average, keep, scales):
    objective = load_objective("grpo_dapo", {"average": average, "keep": keep})
    ids, finished = torch.tensor([4, 4, 4, 9]), torch.tensor([True, False, True, True])
    batch = by_hand([1.0] * 6, [1.0] * 6, [1, 3, 0, 2], group_ids=ids, max_new_tokens=5, finished=finished)
    assert objective.prepare(batch).scale.tolist() == pytest.approx(scales)
    assert coefficients(objective, batch).tolist() == pytest.approx([6 * scale for scale in scales])


# corrections of the gap between sampler and trainer -------------------------------------------------------------------
GAPS = [1.5, 4.0, 0.4, 0.8]  # pi_old / pi_sampler of each token
U, TOKEN_MEAN = "exp(logp_old - logp_sampler)", (1.5 + 2.0 + 0.4 + 0.8) / 4
K3 = [value - 1 - math.log(value) for value in GAPS]  # 0.0945, 1.6137, 0.3163, 0.0231


@pytest.mark.parametrize(
    ("name", "changes", "weights"),
    [
        ("icepop", {"alpha": 0.4 - 1e-12, "beta": 4.0 + 1e-12}, GAPS),
        # means over tokens of the mini-batch
        ("tis", {"u": f"min({U}, cap)", "v": "u/mean_b(u)"}, [x / TOKEN_MEAN for x in (1.5, 2.0, 0.4, 0.8)]),
        ("icepop", {"v": "k/mean_b(k)", "k": "u*((u >= 5) & (u <= 6))"}, [0.0] * 4),
        # rejection of responses: the geometric mean of the first is sqrt(6) = 2.45
        ("seq_mask_tis", {"m": "exp(g)", "v": "(m >= alpha) & (m <= beta)"}, [1.0, 0.0, 0.0, 1.0]),
        ("trm", {"v": "sum_i(k3(logp_sampler - logp_old)) <= delta", "delta": sum(K3[:2]) - 1e-9}, [0, 0, 1, 1]),
    ],
)
def test_corrections(name, changes, weights):
    """Times the policy term, after the clip. What is rejected stays in the denominator: 1/N with N = 4."""
    objective = load_objective(name, {"average": "tokens", **changes})
    batch = by_hand([1.0] * 4, [1.0] * 4, [2, 0, 1, 1], sampler_logprobs=-1 - torch.log(tensor(*GAPS)))
    assert coefficients(objective, batch) == pytest.approx(weights)


# penalties ------------------------------------------------------------------------------------------------------------
def test_k3_is_held_as_a_whole():
    """Below d = -20 it is e^20 - 21 without a gradient: with its exp alone held, its slope would push the wrong way."""
    objective = load_objective("tepo_kl_all", {"beta": 1, "J": "A*logp - beta*kl"})
    batch = by_hand([math.exp(-25.0)], [0.0])
    assert loss_of(objective, batch).tokens["kl"].item() == pytest.approx(math.exp(20) - 21)
    assert coefficients(objective, batch).item() == 0


def of_case(case: TabularCase, name: str, **changes: Any) -> Loss:
    objective = load_objective(name, changes)
    return loss_of(objective, case.batch(objective))


def test_masks_of_equation_4():
    change = tensor(-1, 1, -1e-7, -1, 1, 1e-7, -1, 1)
    batch = by_hand([1.0] * 8, [1, 1, 1, -1, -1, -1, 0, 0], entropies=change + 2, old_entropies=torch.full((8,), 2.0))
    for name, places in (("tepo", [0]), ("tepo_kl_negative", [4]), ("tepo_kl_both", [0, 4])):
        assert loss_of(load_objective(name), batch).tokens["kl_mask"].nonzero().flatten().tolist() == places, name


def test_entropy_change_readings():
    """Measured, by covariance (Eq. 18: falls where (log pi - mean)(A - mean) > 0)
    and by STEER's sign (falls where A (log pi + H) > 0)."""
    case = make_case(1)
    batch = case.batch(load_objective("tepo"))
    lp, a, h = batch.logprobs.detach(), batch.advantages, batch.old_entropies
    expected = {
        "(A > 0) & (dH < -tol)": (a > 0) & (batch.entropies.detach() < h),
        "(A > 0) & (-cov_b(logp, A) < -tol)": (a > 0) & ((lp - lp.mean()) * (a - a.mean()) > 0),
        "(A > 0) & (-A*(logp + H_old) < -tol)": (a > 0) & (a * (lp + h) > 0),
    }
    for reading, places in expected.items():
        assert torch.equal(of_case(case, "tepo", M=reading).tokens["kl_mask"], places), reading
        assert 0 < places.sum() < (a > 0).sum(), "the reading separates tokens"
    still = of_case(make_case(1, drift=0.0), "tepo").tokens["kl_mask"]
    assert not still.any(), "no entropy change before the first update (A6)"


def test_full_kl_gradient_by_logits():
    """d KL / dz_v = pi_v (log pi_v/q_v - KL), on the masked tokens, divided by all N tokens."""
    case = make_case(2)
    whole, policy = of_case(case, "tepo", kl="kl_old", beta=2), of_case(case, "tepo_no_kl")
    with_kl, without = (torch.autograd.grad(one.loss, case.logits)[0] for one in (whole, policy))
    pi, q = torch.softmax(case.logits, -1).detach(), torch.softmax(case.old_logits, -1)
    kl = (pi * (pi / q).log()).sum(-1, keepdim=True)
    expected = 2.0 * pi * ((pi / q).log() - kl) / len(case.tokens) * whole.tokens["kl_mask"][:, None]
    torch.testing.assert_close(with_kl - without, expected, rtol=1e-9, atol=1e-12)


def test_mean_over_the_mask():
    """Reading A10: the same sum, divided by the masked tokens in place of all."""
    case = make_case(3)
    inside, policy = of_case(case, "tepo", beta=1), of_case(case, "tepo_no_kl").loss
    masked = of_case(case, "tepo", beta=1, J=f"{PPO} - beta*M/mean_b(M)*kl")
    count = int(inside.tokens["kl_mask"].sum())
    assert count > 1
    torch.testing.assert_close(masked.loss - policy, (inside.loss - policy) * len(case.tokens) / count)


# metrics --------------------------------------------------------------------------------------------------------------
def test_metrics_by_hand():
    entropies = {"entropies": tensor(0.2, 0.4, 0.6), "old_entropies": tensor(0.3, 0.3, 0.3)}
    batch = by_hand([0.5, 1.0, 2.0], [1.0, -1.0, 2.0], [1, 2], **entropies)
    assert loss_of(load_objective("grpo_dapo"), batch).metrics.means() == pytest.approx(
        {
            "actor/ppo_kl": 0.0,  # mean of -log ratio: (log 2 - 0 - log 2)/3
            "actor/entropy": 0.4,
            "actor/entropy_change": 0.1,
            "actor/pg_clipfrac": 1 / 3,
            "actor/ratio_mean": 3.5 / 3,
            "actor/pg_loss": -(0.5 - 1.0 + 2.56) / 3,
            "actor/ratio_max": 2.0,
        },
        abs=1e-7,
    )


def test_metrics_of_penalties_and_corrections():
    """Before their coefficients. What differs by a factor adds up to one metric of its sort."""
    batch = by_hand([0.5, 2.0], [1.0, 1.0], [1, 1], entropies=tensor(0.2, 0.9), old_entropies=tensor(0.3, 0.3))
    out = loss_of(load_objective("tepo"), batch)
    means = out.metrics.means()
    assert means["actor/kl_tokens"] == pytest.approx(0.5)
    assert means["actor/kl_loss"] == pytest.approx((2 - math.log(2) - 1) / 2)
    assert not any(value.requires_grad for value in (*out.tokens.values(), out.metrics.sums))
    means = loss_of(token(f"{PPO} - 0.5*k2(d) + 3*abs(d) + 0.25*H"), batch).metrics.means()
    assert means["actor/entropy_loss"] == pytest.approx(0.55)
    assert means["actor/penalty"] == pytest.approx(math.log(2) ** 2 / 2 + math.log(2))
    gaps = by_hand([1.0] * 4, [1.0] * 4, [2, 0, 1, 1], sampler_logprobs=-1 - torch.log(tensor(*GAPS)))
    means = loss_of(load_objective("icepop", {"beta": 3}), gaps).metrics.means()
    assert means["actor/correction_weight"] == pytest.approx((1.5 + 0.8) / 4)
    assert means["actor/correction_dropped"] == pytest.approx(0.5)


BESIDE_V = {"v": "exp(0*d)", "J": "min(v, clip(w, 1 - low, 1 + high)*A)"}


@pytest.mark.parametrize(
    ("name", "changes", "ratios", "clipped"),
    [
        # where a clip acts and the min around it takes it
        ("grpo_dapo", {}, [1.5, 0.5, 1.5, 0.5], [1, 0, 0, 1]),
        ("kimi_k2_5", {}, [1.5, 0.5, 1.5, 0.5], [1, 1, 1, 1]),
        # beside the weight `v` itself
        ("grpo_dapo", BESIDE_V, [1.5, 0.5, 1.5, 0.5], [0, 1, 1, 1]),
        # CISPO's weight is held, though no token drops out
        ("cispo", {}, [1.5, 0.5, 1.5, 0.5], [1, 0, 1, 0]),
        # without a clip: where the policy term has no gradient though A is not 0
        ("dppo_tv", {"low": 0.1, "high": 0.1}, [1.5, 0.5, 1.5, 0.5], [1, 0, 0, 1]),  # old probabilities of 0.37
        ("best_of_group", {}, [1.5, 0.5, 1.1, 1.0], [1, 0, 0, 0]),  # its one bound is a min
        ("opsm", {"delta": 0.04}, [1.1, 1.1, 0.9, 0.95], [0, 0, 0, 0]),  # a mask is no clip: it has a metric of its own
    ],
)
def test_what_counts_as_clipped(name, changes, ratios, clipped):
    """Two tokens of A = 1, two of A = -1; one response each."""
    out = loss_of(load_objective(name, changes), by_hand(ratios, [1, 1, -1, -1], [1] * 4))
    assert out.tokens["clipped"].int().tolist() == clipped
    assert out.metrics.means()["actor/pg_clipfrac"] == pytest.approx(sum(clipped) / 4)


def test_means_over_mini_batches_weigh_tokens_and_updates():
    """Token means weigh every token left in; the loss is a mean over mini-batches, whatever their micro-batches."""
    objective = load_objective("grpo_dapo", {"keep": "finished"})
    one = by_hand([1.0, 1.0, 9.0], [1.0] * 3, [2, 1], finished=torch.tensor([True, False]))
    two = by_hand([1.2, 1.2, 1.2, 1.2], [3.0] * 4, [1, 1, 2], finished=torch.ones(3) > 0)
    plan = objective.prepare(two)
    total = loss_of(objective, one).metrics
    for part in ([0], [2, 1]):
        total = total + objective.loss(two.select(part), plan.select(part)).metrics
    means = total.means()
    assert means["actor/ratio_mean"] == pytest.approx((2 + 4 * 1.2) / 6)
    assert means["actor/pg_loss"] == pytest.approx((-1.0 - 3.6) / 2)
    assert dict(total.items())["actor/pg_loss"][1].item() == pytest.approx(2.0)


# over a group, a rollout or a mini-batch ------------------------------------------------------------------------------
SHARES = ("gtpo", "gtpo_clipped", "gtpo_v2", "grpo_s", "grpo_s_v2")  # told apart by entropies too
IN_THE_LOSS = {"reinforce_pp_no_group"}  # its advantage needs log-probs: the rollout hands over the reward


def groups(rewards: list[float], ids: list[int], lengths: list[int] | None = None, **more: Any) -> Groups:
    return Groups(tensor(*rewards), torch.tensor(ids), torch.tensor(lengths or [1] * len(ids)), **more)


def advantages(name: str, given: Groups, **changes: Any) -> list[float]:
    return load_objective(name, changes).advantages(given).tolist()


@pytest.mark.parametrize(
    "name", [name for name in names() if "eps" in load_objective(name).read and name not in IN_THE_LOSS]
)
def test_equal_rewards_and_groups_of_one_are_exactly_zero_without_eps(name):
    """0/0 is 0. With eps `alike` of tepo/objectives/check.py asks every row. 0.1 eight times has a mean that is not 0.1
    in floating point."""
    more = {"old_entropies": torch.full((18,), 0.5), "max_new_tokens": 9, "finished": torch.ones(9) > 0}
    more |= {"values": tensor(*[0.1] * 9)}  # as they are tracked: all alike
    given = groups([0.0 if name in SHARES else 0.1] * 9, [1] * 8 + [2], [2] * 9, **more)
    assert advantages(name, given, eps=0) == [0.0] * 18


def test_gdpo_takes_named_rewards_one_by_one_with_their_weights():
    """Where the first differs by 1 and the second by 0.1, a sum would let the first decide. All are short."""
    named, part = tensor([1, 0.1], [0, 0], [1, 0], [0, 0.1]), 0.5 / math.sqrt(1 / 3)  # of what two of four have
    given = groups(named.mean(1).tolist(), [1] * 4, named=named, weights=(3, 1), max_new_tokens=10)
    total = tensor(4 * part, -4 * part, 2 * part, -2 * part)
    assert advantages("gdpo", given) == pytest.approx((total / total.std()).tolist(), rel=1e-4)
    with pytest.raises(UserError, match="a column for each weight"):
        groups([1] * 4, [1] * 4, named=named, weights=(1,))


# shares of entropy ----------------------------------------------------------------------------------------------------
ENTROPIES = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.1


def shaped(old: Tensor, rewards: tuple[float, ...] = (1, 1, 0, 1), lengths: tuple[int, ...] = (3, 1, 2, 4)) -> Groups:
    return groups(list(rewards), [5] * len(rewards), list(lengths), old_entropies=old, max_new_tokens=4)


@pytest.mark.parametrize("name", SHARES)
def test_advantages_depend_on_proportions_of_entropies_alone(name):
    """Entropies of a nearly deterministic policy, 1e-9 nats say, are told apart like any others."""
    for rewards in ((1, 1, 0, 1), (0, 1, 0, 0)):
        expected = advantages(name, shaped(ENTROPIES, rewards))
        assert advantages(name, shaped(1e-9 * ENTROPIES, rewards)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_sure_tokens_stay_finite():
    """All successes sure at a position: equal shares, which keep the sum rule. A sure failure takes h_t alone."""
    for name in SHARES:
        assert all(map(math.isfinite, advantages(name, shaped(torch.zeros(10))))), name
    assert advantages("gtpo", shaped(tensor(0, 0), (1, 1), (1, 1)), A="share_t(H_old, R > 0)") == [1.0, 1.0]
    for name in ("gtpo_v2", "grpo_s_v2"):
        lost = advantages(name, shaped(tensor(0, 1), (0, 0), (1, 1)), A="f")
        assert lost == pytest.approx([-2.0, 0.0], abs=1e-6)
    lost = advantages("gtpo_v2", shaped(tensor(1e-3, 1), (0, 0), (1, 1)), A="f")
    assert lost == pytest.approx([-2000 / 1001, -2 / 1001], rel=1e-3)


def test_length_term_of_4_5_1():
    """L2 = 10, L1 = 2: as printed (T - 8)/10, then a jump to 1 beyond L2; the row has (T - 8)/2."""
    given = groups([1] * 4, [5] * 4, [8, 9, 10, 11], old_entropies=torch.ones(38), max_new_tokens=10)
    as_printed = "where(T > L, 1, clip((T - (1 - buffer)*L)/L, 0, 1))"
    found = advantages("gtpo_clipped", given, A="P*R", P=as_printed)
    assert [found[place] for place in (0, 8, 17, 27)] == pytest.approx([0, 0.1, 0.2, 1])


# tokens that are selected ---------------------------------------------------------------------------------------------
def test_tail_tokens_leaves_out_the_largest_until_the_mean_is_at_most_the_bound():
    """Of 2 2 7 9 1 the fourth may not leave nor counts. A bound may be met; of two alike the larger tie goes."""
    among, ties = torch.tensor([True, True, True, False, True]), tensor(0, 1, 2, 3, 4)
    for bound, expected in ((3, [0, 0, 0, 0, 0]), (1.6, [0, 1, 1, 0, 0]), (0.5, [1, 1, 1, 0, 1])):
        assert tail_tokens(tensor(2, 2, 7, 9, 1), among, bound, ties, None).int().tolist() == expected


def test_draws_are_uniform_and_others_with_another_salt():
    batch = make_case(0, repeat=400).batch(load_objective("grpo_dapo"))
    number = draws(batch, 1)
    assert number.mean().item() == pytest.approx(0.5, abs=0.02)
    assert torch.histc(number, 10, 0, 1).min() > 0.08 * len(number)
    assert number.unique().shape == number.shape
    assert not torch.equal(draws(batch, 6), number)


def weights(objective: Objective, batch: TokenBatch, salt: int = 0) -> list[float]:
    """The line `v` of each token."""
    return loss_of(objective, batch, salt).tokens["weight"].tolist()


def test_clip_cov_draws_strictly_inside_its_bounds():
    """Log-probs less their mean of -1.75: 0.75, -2.25, -1.25, 2.75; covariances 0.75, 4.5, 1.25, 5.5. With bounds of
    1.25 and 5.5 the second alone is inside."""
    logprobs = tensor(-1, -4, -3, 1)
    batch = TokenBatch(logprobs, tensor(1, -2, -1, 2), torch.tensor([4]), logprobs, uid=torch.arange(1))
    objective = load_objective("clip_cov", {"share": 1, "alpha": 1.25, "beta": 5.5})
    assert objective.prepare(batch).values[objective.planned[-1].number].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("least", [0.0, 0.1])
def test_steer_counts_the_largest_change_as_at_least_the_floor(least):
    """On-policy |Omega| = |A (1 - pi) (log pi + H)|, here 0.05 (1 - 1/e) and a third of it."""
    batch = by_hand([1.0, 1.0], [0.05, -0.05 / 3], old_entropies=tensor(2.0, 2.0))
    size = [0.05 * (1 - math.exp(-1)), 0.05 / 3 * (1 - math.exp(-1))]
    expected = [0.8 ** (x / max(size[0], least)) for x in size]
    assert weights(load_objective("steer", {"least": least}), batch) == pytest.approx(expected, rel=1e-9)


def test_steer_takes_sure_and_impossible_tokens_as_nearly_so():
    """pi and pi_old stay inside [1e-8, 1 - 1e-8], as in the released code: Omega is finite, and no weight is NaN."""
    logprobs = tensor(0.0, -100.0, -1.0)
    batch = TokenBatch(logprobs, tensor(1, 1, 1), torch.tensor([3]), logprobs, old_entropies=tensor(1, 1, 3))
    p = [1 - 1e-8, 1e-8, math.exp(-1)]
    size = [abs((1 - x) * (math.log(x) + h)) for x, h in zip(p, (1, 1, 3), strict=True)]
    found = weights(load_objective("steer", {"least": 0}), batch)
    assert found == pytest.approx([0.8 ** (x / max(size)) for x in size], rel=1e-9)


def test_ties_stay_by_uid_and_then_by_position():
    """Responses 7, 2**62 and 5, in that order in the batch; four of six tokens tie, and three of all stay."""
    entropies, uid = tensor(1.0, 1.0, 1.0, 2.0, 0.5, 1.0), torch.tensor([7, 2**62, 5])
    batch = by_hand([1.0] * 6, [1.0] * 6, [2, 2, 2], entropies=entropies, uid=uid)
    objective = load_objective("top_entropy_v2", {"share": 0.5})
    for salt in range(3):
        assert [value > 0 for value in weights(objective, batch, salt)] == [True, False, False, True, False, True]
