import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tepo.objectives import Loss, Objective, TokenBatch, load_objective
from tepo.objectives.functions import RUN
from tepo.objectives.scope import Scope
from tepo.objectives.testing.case import TabularCase, make_case
from tests.invariants.rows import PPO
from tests.unit.objectives.flat import by_hand, coefficients, tensor


def token(J: str, **lines: Any) -> Objective:
    """Means over tokens of J, of the ratio w (the token's, or another) and the advantage A, with PPO's bounds."""
    return load_objective("grpo_dapo", {"J": J, **lines})


def loss_of(objective: Objective, batch: TokenBatch) -> Loss:
    return objective.loss(batch, objective.prepare(batch))


# ratios ---------------------------------------------------------------------------------------------------------------
BATCH = ([1.2, 0.9, 1.5, 0.8], [2.0, 2.0, 2.0, -1.0], [3, 1])
GEOMETRIC = (1.2 * 0.9 * 1.5) ** (1 / 3)
PREFIX = [1.2, math.sqrt(1.08), GEOMETRIC]
LOCAL, LINE_21 = "sg(exp(mean_i(d)))*(1 + d - sg(d))", "sg(exp(mean_i(d)))*(1 + (d - sg(d))/T)"


@pytest.mark.parametrize(
    ("w", "ratios", "weights"),
    [
        ("exp(d)", [1.2, 0.9, 1.5], [1.2, 0.9, 1.5]),
        ("exp(mean_i(d))", [GEOMETRIC] * 3, [GEOMETRIC] * 3),  # no length under a mean over tokens: A w / N
        (LOCAL, [GEOMETRIC] * 3, [GEOMETRIC] * 3),
        (LINE_21, [GEOMETRIC] * 3, [GEOMETRIC / 3] * 3),  # Algorithm 1, line 21 divides by the length (A7)
        ("mean_i(exp(d))", [1.2] * 3, [1.2, 0.9, 1.5]),
        ("sg(exp(prefix_mean_i(d)))*(1 + d - sg(d))", PREFIX, PREFIX),
        # the full gradient of token j is the sum of p_t/t over t >= j
        ("exp(prefix_mean_i(d))", PREFIX, [sum(PREFIX[t] / (t + 1) for t in range(j, 3)) for j in range(3)]),
        ("clip(exp(d), sg(mean_i(exp(d))) - 0.1, 2)", [1.2, 1.1, 1.5], [1.2, 0.0, 1.5]),  # a bound of each response
        ("exp(sum_i(d))", [1.62] * 3, [3 * 1.62] * 3),  # each token carries the terms of all three
    ],
)
def test_ratios(w, ratios, weights):
    objective, batch = token("w*A", w=w), by_hand(*BATCH)
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
    means = loss_of(token("w*A", w="exp(mean_i(d))"), batch).tokens["ratio"].log()
    assert means.tolist() == pytest.approx([20.0, 20.0, -20.0, -20.0])


def test_a_token_that_neither_policy_can_draw_has_ratio_1():
    """log 0 is a finite floor on both sides, and takes no gradient."""
    never = tensor(-math.inf, -1.0).requires_grad_()
    batch = TokenBatch(tensor(-math.inf, -1.0), tensor(1.0, 1.0), torch.tensor([2]), never)
    out = loss_of(token("w*A"), batch)
    assert out.tokens["ratio"].tolist() == [1.0, 1.0]
    assert torch.autograd.grad(out.loss, never)[0].tolist() == [0.0, -0.5]


def test_long_prefixes_keep_their_precision_behind_other_responses():
    """The cumulative sum is over the flat batch: in float32 alone a late response would lose its digits."""
    d = torch.cat([torch.full((8000,), 19.0), torch.tensor([0.01, 0.02, 0.03])])
    scope = Scope(TokenBatch(d, d, torch.tensor([8000, 3])), torch.float32)
    assert RUN["prefix_mean_i"](scope, d)[8000:].tolist() == pytest.approx([0.01, 0.015, 0.02], rel=1e-6)


# clips ----------------------------------------------------------------------------------------------------------------
RATIOS = [0.5, 0.9, 1.1, 1.5, 4.0]
LETTER = "min(w, clip(w, 1 - low, 1 + high))*A"  # A1
DUAL = {"p": PPO, "J": "where(A < 0, max(p, 3*A), p)"}


@pytest.mark.parametrize(
    ("lines", "advantage", "slopes", "gains"),
    [
        # outside on the high side the gradient is 0, on the low side it flows
        ({"J": PPO}, 2, [1.0, 1.8, 2.2, 0.0, 0.0], [1.0, 1.8, 2.2, 2.56, 2.56]),
        ({"J": PPO}, -2, [0.0, -1.8, -2.2, -3.0, -8.0], [-1.6, -1.8, -2.2, -3.0, -8.0]),
        # Eq. 4 to the letter: no lower bound where A < 0, and the gradient dies above the upper one
        ({"J": LETTER}, 2, [1.0, 1.8, 2.2, 0.0, 0.0], [1.0, 1.8, 2.2, 2.56, 2.56]),
        ({"J": LETTER}, -2, [-1.0, -1.8, -2.2, 0.0, 0.0], [-1.0, -1.8, -2.2, -2.56, -2.56]),
        # dual clip bounds the loss where the advantage is negative
        (DUAL, 2, [1.0, 1.8, 2.2, 0.0, 0.0], [1.0, 1.8, 2.2, 2.56, 2.56]),
        (DUAL, -2, [0.0, -1.8, -2.2, -3.0, 0.0], [-1.6, -1.8, -2.2, -3.0, -6.0]),
        # a clip whatever the sign
        ({"J": "clip(w, 1 - low, 1 + high)*A"}, 2, [0.0, 1.8, 2.2, 0.0, 0.0], [1.6, 1.8, 2.2, 2.56, 2.56]),
        ({"J": "clip(w, 1 - low, 1 + high)*A"}, -2, [0.0, -1.8, -2.2, 0.0, 0.0], [-1.6, -1.8, -2.2, -2.56, -2.56]),
        ({"J": "w*A"}, 2, [1.0, 1.8, 2.2, 3.0, 8.0], [1.0, 1.8, 2.2, 3.0, 8.0]),
    ],
)
def test_clips(lines, advantage, slopes, gains):
    """What has no gradient counts as clipped."""
    objective, batch = load_objective("grpo_dapo", lines), by_hand(RATIOS, [advantage] * 5)
    assert coefficients(objective, batch) == pytest.approx(slopes)
    out = loss_of(objective, batch)
    assert out.loss.item() == pytest.approx(-sum(gains) / 5)
    if lines is not DUAL:  # its second bound is no clip of a ratio
        assert out.tokens["clipped"].tolist() == [slope == 0 for slope in slopes]


def test_sure_tokens_diverge_by_nothing_from_sure_tokens():
    """log pi = 0 on both sides: 0 log 0 must not be a NaN; from a sure token to 0.5 the divergence is large."""
    now = tensor(0.0, math.log(0.5)).requires_grad_()
    batch = TokenBatch(tensor(0.0, 0.0), tensor(1.0, -1.0), torch.tensor([2]), now)
    assert coefficients(load_objective("dppo_kl"), batch) == pytest.approx([1.0, 0.0])


# averages -------------------------------------------------------------------------------------------------------------
SPREAD = [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("average", "scales"),
    [  # six tokens in three responses; the empty one counts in neither
        ("tokens", [1 / 6] * 6),
        ("responses", [1 / 3, 1 / 9, 1 / 9, 1 / 9, 1 / 6, 1 / 6]),
        ("sums", [1 / 3] * 6),
        ("budget", [1 / 15] * 6),
        ("1/(7*B)", [1 / 21] * 6),
        ("groups", [1 / 8] * 4 + [1 / 4] * 2),  # A9: 4 tokens in one group, 2 in the other
    ],
)
def test_an_average_divides_by_its_own_count(average, scales):
    objective = load_objective("grpo_dapo", {"average": average})
    batch = by_hand([1.0] * 6, [1.0] * 6, SPREAD, group_ids=torch.tensor([4, 4, 4, 9]), max_new_tokens=5)
    assert objective.prepare(batch).scale.tolist() == pytest.approx(scales)
    assert coefficients(objective, batch).tolist() == pytest.approx([6 * scale for scale in scales])


@pytest.mark.parametrize(
    ("average", "scales"), [("tokens", [1 / 3, 0, 0, 0, 1 / 3, 1 / 3]), ("responses", [1 / 2, 0, 0, 0, 1 / 4, 1 / 4])]
)
def test_filtered_responses_leave_every_denominator(average, scales):
    objective = load_objective("grpo_dapo", {"average": average, "keep": "finished"})
    batch = by_hand([1.0] * 6, [1.0] * 6, SPREAD, finished=torch.tensor([True, False, True, True]))
    assert objective.prepare(batch).scale.tolist() == pytest.approx(scales)


# corrections of the gap between sampler and trainer -------------------------------------------------------------------
GAPS, PARTED = [1.5, 4.0, 0.4, 0.8], [2, 0, 1, 1]  # pi_old / pi_sampler of each token; lengths
U, PRODUCT = "exp(logp_old - logp_sampler)", "exp(sum_i(logp_old - logp_sampler))"


def corrected() -> TokenBatch:
    return by_hand([1.0] * 4, [1.0] * 4, PARTED, sampler_logprobs=-1 - torch.log(tensor(*GAPS)))


TOKEN_MEAN = (1.5 + 2.0 + 0.4 + 0.8) / 4
K3 = [value - 1 - math.log(value) for value in GAPS]  # 0.0945, 1.6137, 0.3163, 0.0231


@pytest.mark.parametrize(
    ("name", "changes", "weights"),
    [
        ("tis", {"v": f"min({PRODUCT}, 10)"}, [6.0, 6.0, 0.4, 0.8]),
        ("icepop", {"alpha": 0.4 - 1e-12, "beta": 4.0 + 1e-12}, GAPS),
        ("icepop", {"u": PRODUCT}, [0.0, 0.0, 0.0, 0.8]),
        # means over tokens, and over responses that are not empty, of the mini-batch
        ("tis", {"u": f"min({U}, cap)", "v": "u/mean_b(u)"}, [x / TOKEN_MEAN for x in (1.5, 2.0, 0.4, 0.8)]),
        ("icepop", {"v": "k/mean_b(k)", "k": "u*((u >= 5) & (u <= 6))"}, [0.0] * 4),
        # rejection of responses: the geometric mean of the first is sqrt(6) = 2.45
        ("seq_mask_tis", {"m": "exp(g)", "v": "(m >= alpha) & (m <= beta)"}, [1.0, 0.0, 0.0, 1.0]),
        ("seq_mask_tis", {"v": f"({PRODUCT} >= 0.1) & ({PRODUCT} <= 5.9)"}, [0.0, 0.0, 1.0, 1.0]),
        ("trm", {"v": "max_i(k3(logp_sampler - logp_old)) <= delta", "delta": K3[1] + 1e-9}, [1.0] * 4),
        ("trm", {"v": "max_i(k3(logp_sampler - logp_old)) <= delta", "delta": K3[1] - 1e-9}, [0.0, 0.0, 1.0, 1.0]),
        ("trm", {"v": "mean_i(k3(logp_sampler - logp_old)) <= delta", "delta": sum(K3[:2]) / 2 + 1e-9}, [1.0] * 4),
        ("trm", {"v": "sum_i(k3(logp_sampler - logp_old)) <= delta", "delta": sum(K3[:2]) - 1e-9}, [0, 0, 1, 1]),
    ],
)
def test_corrections(name, changes, weights):
    """Times the policy term, after the clip. What is rejected stays in the denominator: 1/N with N = 4."""
    objective, batch = load_objective(name, {"average": "tokens", **changes}), corrected()
    assert objective.needs.sampler_logprobs
    assert coefficients(objective, batch) == pytest.approx(weights)
    plan = objective.prepare(batch)
    loss = sum(objective.loss(batch.select([i]), plan.select([i])).loss for i in range(4))
    (gradient,) = torch.autograd.grad(loss, batch.logprobs)
    assert -4 * gradient == pytest.approx(weights), "in micro-batches"


def test_correction_metrics():
    means = loss_of(load_objective("icepop", {"beta": 3}), corrected()).metrics.means()
    assert means["actor/correction_weight"] == pytest.approx((1.5 + 0.8) / 4)
    assert means["actor/correction_dropped"] == pytest.approx(0.5)


# penalties ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("point", [0.0, 0.01, -0.01, 5.0, -5.0])
@pytest.mark.parametrize(
    ("kl", "value", "slope"),
    [
        ("d", lambda d: d, lambda d: 1.0),
        ("k2(d)", lambda d: d * d / 2, lambda d: d),
        ("k3(d)", lambda d: math.exp(-d) + d - 1, lambda d: 1 - math.exp(-d)),
        ("abs(d)", abs, lambda d: (d > 0) - (d < 0)),
        # r log r - r + 1: on samples of the old policy this is KL(pi || pi_old)
        ("exp(d)*k3(d)", lambda d: d * math.exp(d) - math.exp(d) + 1, lambda d: d * math.exp(d)),
    ],
)
def test_estimators(kl, value, slope, point):
    objective = load_objective("tepo_kl_all", {"kl": kl, "beta": 1, "J": "A*logp - beta*kl"})
    batch = by_hand([math.exp(point)], [0.0])
    assert loss_of(objective, batch).tokens["kl"].item() == pytest.approx(value(point), rel=1e-9, abs=1e-12)
    assert coefficients(objective, batch).item() == pytest.approx(-slope(point), rel=1e-9, abs=1e-12)


def test_k3_is_held_as_a_whole():
    """Below d = -20 it is e^20 - 21 without a gradient: with its exp alone held, its slope would push the wrong way."""
    objective = load_objective("tepo_kl_all", {"beta": 1, "J": "A*logp - beta*kl"})
    batch = by_hand([math.exp(-25.0)], [0.0])
    assert loss_of(objective, batch).tokens["kl"].item() == pytest.approx(math.exp(20) - 21)
    assert coefficients(objective, batch).item() == 0


def masks(case: TabularCase, name: str, **changes: Any) -> Tensor:
    objective = load_objective(name, changes)
    return loss_of(objective, case.batch(objective)).tokens["kl_mask"]


def test_masks_of_equation_4():
    change = tensor(-1, 1, -1e-7, -1, 1, 1e-7, -1, 1)
    batch = by_hand([1.0] * 8, [1, 1, 1, -1, -1, -1, 0, 0], entropies=change + 2, old_entropies=torch.full((8,), 2.0))
    for name, kept in (("tepo", [0]), ("tepo_kl_negative", [4]), ("tepo_kl_both", [0, 4]), ("tepo_kl_all", range(8))):
        mask = loss_of(load_objective(name), batch).tokens.get("kl_mask", torch.ones(8))
        assert mask.nonzero().flatten().tolist() == list(kept), name


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
    for reading, mask in expected.items():
        assert torch.equal(masks(case, "tepo", M=reading), mask), reading
        assert 0 < mask.sum() < (a > 0).sum(), "the reading separates tokens"
    one, other, _ = expected.values()
    assert not torch.equal(one, other)
    assert not masks(make_case(1, drift=0.0), "tepo").any(), "no entropy change before the first update (A6)"


def of_case(case: TabularCase, name: str, **changes: Any) -> Loss:
    objective = load_objective(name, changes)
    return loss_of(objective, case.batch(objective))


@pytest.mark.parametrize("name", ["tepo_kl_all", "tepo"])
def test_full_kl_gradient_by_logits(name):
    """d KL / dz_v = pi_v (log pi_v/q_v - KL), on the masked tokens, divided by all N tokens."""
    case = make_case(2)
    with_kl, without = (
        torch.autograd.grad(of_case(case, one, **changes).loss, case.logits)[0]
        for one, changes in ((name, {"kl": "kl_old", "beta": 2}), ("tepo_no_kl", {}))
    )
    pi, q = torch.softmax(case.logits, -1).detach(), torch.softmax(case.old_logits, -1)
    kl = (pi * (pi / q).log()).sum(-1, keepdim=True)
    expected = 2.0 * pi * ((pi / q).log() - kl) / len(case.tokens)
    if name == "tepo":
        expected = expected * masks(case, "tepo")[:, None]
    torch.testing.assert_close(with_kl - without, expected, rtol=1e-9, atol=1e-12)


def test_mean_over_the_mask():
    """Reading A10: the same sum, divided by the masked tokens in place of all."""
    case = make_case(3)
    inside, policy = of_case(case, "tepo", beta=1), of_case(case, "tepo_no_kl").loss
    masked = of_case(case, "tepo", beta=1, J=f"{PPO} - beta*M/mean_b(M)*kl")
    count = int(inside.tokens["kl_mask"].sum())
    assert count > 1
    torch.testing.assert_close(masked.loss - policy, (inside.loss - policy) * len(case.tokens) / count)


def test_penalties_add_each_with_its_mask_mean_and_coefficient():
    """Four beside each other: what they add to the loss, and to one metric for each sort, is the sum of each alone."""
    case, M = make_case(4), "((A > 0) & (dH < -1e-6)) | ((A < 0) & (dH > 1e-6))"
    terms = [  # with the factor that is not in the metric
        ("0.5*k2(d)", 0.5, "actor/penalty"),
        ("2*M/mean_b(M)*k3(d)", 2.0, "actor/penalty"),
        ("-3*(A > 0)*abs(logp - logp_initial)", -3.0, "actor/penalty"),
        ("-0.25*H", -0.25, "actor/entropy_loss"),
    ]
    plain = of_case(case, "tepo_no_kl").loss

    def added(*terms: str) -> tuple[float, dict[str, float]]:
        used = {"M": M} if any("M" in term for term in terms) else {}
        out = of_case(case, "tepo_no_kl", J=PPO + "".join(f" - ({term})" for term in terms), **used)
        return (out.loss - plain).item(), out.metrics.means()

    moved, means = added(*(term for term, _, _ in terms))
    summed = dict.fromkeys(("actor/penalty", "actor/entropy_loss"), 0.0)
    for term, factor, sort in terms:
        alone, its = added(term)
        assert alone == pytest.approx(factor * its[sort], rel=1e-6), term
        summed[sort] += its[sort]
        moved -= alone
    assert moved == pytest.approx(0, abs=1e-12)
    assert means == pytest.approx(means | summed | {"actor/pg_loss": plain.item()})
