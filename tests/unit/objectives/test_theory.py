"""The papers' theory on tabular softmax policies:
where it holds, and the counter-examples where it does not (docs/paper.md)."""

import itertools

import pytest
import torch
from torch import Tensor

SEEDS = range(20)


def entropy(z: Tensor) -> Tensor:
    return -(torch.softmax(z, 0) * torch.log_softmax(z, 0)).sum()


def table(seed: int, size: int = 6) -> tuple[Tensor, Tensor]:
    """Random logits and advantages."""
    generator = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn(size, generator=generator, dtype=torch.float64), torch.randn(
        size, generator=generator, dtype=torch.float64
    )


def covariance(z: Tensor, a: Tensor) -> Tensor:
    """Cov over a ~ pi of log pi and A."""
    pi, logs = torch.softmax(z, 0), torch.log_softmax(z, 0)
    return (pi * logs * a).sum() - (pi * logs).sum() * (pi * a).sum()


def policy_gradient(z: Tensor, a: Tensor) -> Tensor:
    """d E_pi[A] / dz by autograd."""
    leaf = z.clone().requires_grad_()
    return torch.autograd.grad((torch.softmax(leaf, 0) * a).sum(), leaf)[0]


def sampled_gradient(z: Tensor, action: int, advantage: float) -> Tensor:
    """A grad log pi(action): what one sampled token adds to the update."""
    leaf = z.clone().requires_grad_()
    return advantage * torch.autograd.grad(torch.log_softmax(leaf, 0)[action], leaf)[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_entropy_gradient_has_a_minus_sign_that_equation_1_leaves_out(seed):
    z, _ = table(seed)
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(entropy(leaf), leaf)
    pi, logs = torch.softmax(z, 0), torch.log_softmax(z, 0)
    printed = pi * (logs + entropy(z))
    torch.testing.assert_close(gradient, -printed)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("seed", SEEDS)
def test_policy_gradient_of_equation_3(seed):
    z, a = table(seed)
    pi = torch.softmax(z, 0)
    torch.testing.assert_close(policy_gradient(z, a), pi * (a - (pi * a).sum()))


@pytest.mark.parametrize("beta", [0.1, 1.0, 10.0])
def test_lemma_3_1(beta):
    """pi_k exp(A/beta) / Z maximises E_p[A] - beta KL(p || pi_k):
    stationary in logits, and above every policy tried."""
    z, a = table(0)

    def value(logits: Tensor) -> Tensor:
        p = torch.softmax(logits, 0)
        return (p * a).sum() - beta * (p * (torch.log_softmax(logits, 0) - torch.log_softmax(z, 0))).sum()

    best = (z + a / beta).requires_grad_()
    top = value(best)
    (gradient,) = torch.autograd.grad(top, best)
    assert gradient.abs().max() < 1e-12
    generator = torch.Generator().manual_seed(1)
    for scale in (0.01, 0.3, 3.0):
        for _ in range(50):
            assert value(best.detach() + scale * torch.randn(6, generator=generator, dtype=torch.float64)) < top
    # its value is beta log Z, and the gap to any p is beta KL(p || best), which is Appendix A
    old = torch.log_softmax(z, 0)
    torch.testing.assert_close(top, beta * torch.logsumexp(old + a / beta, 0))
    p = torch.softmax(z, 0)
    gap = beta * (p * (old - torch.log_softmax(best, 0))).sum()
    torch.testing.assert_close(value(z), top - gap)


@pytest.mark.parametrize("seed", SEEDS)
def test_equation_18_holds_to_first_order_for_the_natural_gradient(seed):
    """Tabular softmax: the natural gradient step adds eta A to the logits; dH = -eta Cov + O(eta^2)."""
    z, a = table(seed)
    errors = [abs(float((entropy(z + eta * a) - entropy(z)) / eta + covariance(z, a))) for eta in (1e-2, 1e-3)]
    assert errors[1] < 1e-2
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.2, abs=1e-6)


def test_natural_gradient_direction_is_the_advantage():
    """F (A - c) = grad J with F the Fisher matrix diag(pi) - pi pi', any constant c:
    why the step above is `+ eta A`."""
    z, a = table(3)
    pi = torch.softmax(z, 0)
    fisher = torch.diag(pi) - torch.outer(pi, pi)
    torch.testing.assert_close(fisher @ (a - 0.7), policy_gradient(z, a))


def test_equation_18_fails_for_the_plain_gradient_that_equation_16_writes():
    """pi = (.7, .2, .1), A = (0, 1, -2): the covariance is positive, and the plain gradient step raises the entropy."""
    z, a = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log(), torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
    assert covariance(z, a) > 0.1
    for eta in (1e-3, 1e-1):
        assert entropy(z + eta * policy_gradient(z, a)) > entropy(z)
        assert entropy(z + eta * a) < entropy(z)


@pytest.mark.parametrize("seed", SEEDS)
def test_inner_product_of_one_token(seed):
    """<grad H, A grad log pi_a> = -A (u_a - E_pi[u]) with u = pi (log pi + H):
    the exact form of Lemma 3.2's product."""
    z, _ = table(seed)
    leaf = z.clone().requires_grad_()
    (dh,) = torch.autograd.grad(entropy(leaf), leaf)
    pi, logs, h = torch.softmax(z, 0), torch.log_softmax(z, 0), entropy(z)
    u = pi * (logs + h)
    for action, advantage in itertools.product(range(6), (1.0, -2.0)):
        product = (dh * sampled_gradient(z, action, advantage)).sum()
        torch.testing.assert_close(product, -advantage * (u[action] - (pi * u).sum()))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_lemma_3_2_holds_for_confident_tokens(advantage):
    """pi_a = .97: A > 0 lowers the entropy, A < 0 raises it, as the lemma says;
    log pi + H is positive there, not negative as its proof says."""
    z = torch.tensor([0.97, 0.02, 0.01], dtype=torch.float64).log()
    assert z[0] + entropy(z) > 0
    change = entropy(z + 0.01 * sampled_gradient(z, 0, advantage)) - entropy(z)
    assert change * advantage < 0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("action", [1, 2])
def test_lemma_3_2_fails_for_unlikely_tokens(action, advantage):
    """pi = (.9, .08, .02). Pushing an unlikely token further down LOWERS the entropy;
    raising it RAISES it: the opposite sign."""
    z = torch.tensor([0.9, 0.08, 0.02], dtype=torch.float64).log()
    for step in (1e-3, 0.1):
        change = entropy(z + step * sampled_gradient(z, action, advantage)) - entropy(z)
        assert change * advantage > 0


def test_the_mask_of_equation_4_picks_confident_tokens():
    """Among tokens with A > 0, a falling entropy means u_a above its mean;
    for the policies here nearly the tokens with log pi > -H."""
    agree = falls = total = 0
    for seed in range(200):
        z, _ = table(seed)
        logs, h = torch.log_softmax(z, 0), entropy(z)
        for action in range(6):
            change = entropy(z + 1e-4 * sampled_gradient(z, action, 1.0)) - h
            agree += bool((change < 0) == (logs[action] > -h))
            falls += bool(change < 0)
            total += 1
    assert 0.05 < falls / total < 0.5, "the mask is far from all tokens with A > 0 (Theorem 3.1)"
    assert agree / total > 0.9


def test_sequence_weights_of_appendix_b():
    """Two tokens, all four responses enumerated: the product of ratios gives the exact off-policy gradient;
    the token ratio (GRPO) and the geometric mean (TEPO, GSPO) do not.

    What TEPO keeps of Appendix B is one weight for the whole response, not its value.
    """
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(
        3, 2, generator=generator, dtype=torch.float64
    ).requires_grad_()  # rows: first token; second after 0; after 1
    old = (theta + 0.5 * torch.randn(3, 2, generator=generator, dtype=torch.float64)).detach()
    rewards = {(0, 0): 1.0, (0, 1): -0.5, (1, 0): 0.3, (1, 1): -1.0}

    def logs(table: Tensor, first: int, second: int) -> Tensor:
        return torch.stack([torch.log_softmax(table[0], 0)[first], torch.log_softmax(table[1 + first], 0)[second]])

    exact = torch.autograd.grad(sum(logs(theta, *y).sum().exp() * r for y, r in rewards.items()), theta)[0]

    def surrogate(weigh) -> Tensor:
        total = torch.zeros(())
        for y, r in rewards.items():
            lp, lo = logs(theta, *y), logs(old, *y)
            total = total + lo.sum().exp() * r * (weigh(lp.detach() - lo) * lp).sum()
        return torch.autograd.grad(total, theta)[0]

    torch.testing.assert_close(surrogate(lambda d: d.sum().exp()), exact)
    for biased in (lambda d: d.exp(), lambda d: d.mean().exp()):
        assert (surrogate(biased) - exact).norm() > 0.05 * exact.norm()
