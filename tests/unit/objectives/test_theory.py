"""What docs/paper.md says of the theory, on tabular softmax policies."""

import pytest
import torch
from torch import Tensor


def entropy(z: Tensor) -> Tensor:
    return -(torch.softmax(z, 0) * torch.log_softmax(z, 0)).sum()


def table(seed: int) -> tuple[Tensor, Tensor]:
    """Random logits and advantages of six actions."""
    generator = torch.Generator().manual_seed(seed)
    z, a = (torch.randn(6, generator=generator, dtype=torch.float64) for _ in range(2))
    return 1.5 * z, a


def slope(f, z: Tensor) -> Tensor:
    leaf = z.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf)[0]


def policy_gradient(z: Tensor, a: Tensor) -> Tensor:
    """d E_pi[A] / dz."""
    return slope(lambda leaf: (torch.softmax(leaf, 0) * a).sum(), z)


def test_gradients_of_equations_1_and_3():
    """Eq. 1 leaves out a minus sign."""
    z, a = table(0)
    pi, logs = torch.softmax(z, 0), torch.log_softmax(z, 0)
    torch.testing.assert_close(slope(entropy, z), -pi * (logs + entropy(z)))
    torch.testing.assert_close(policy_gradient(z, a), pi * (a - (pi * a).sum()))


@pytest.mark.parametrize("beta", [0.1, 1.0, 10.0])
def test_lemma_3_1(beta):
    """pi_k exp(A/beta) / Z maximises E_p[A] - beta KL(p || pi_k): its value is beta log Z, and the gap to any p is
    beta KL(p || best), which is Appendix A."""
    z, a = table(0)
    best = z + a / beta

    def divergence(p: Tensor, q: Tensor) -> Tensor:
        return (torch.softmax(p, 0) * (torch.log_softmax(p, 0) - torch.log_softmax(q, 0))).sum()

    highest = beta * torch.logsumexp(torch.log_softmax(z, 0) + a / beta, 0)
    for p in (best, z, *(table(seed)[0] for seed in range(1, 20))):
        value = (torch.softmax(p, 0) * a).sum() - beta * divergence(p, z)
        torch.testing.assert_close(value, highest - beta * divergence(p, best))


@pytest.mark.parametrize("seed", range(9))
def test_equation_18_holds_to_first_order_for_the_natural_gradient(seed):
    """Tabular softmax: the natural gradient step adds eta A to the logits; dH = -eta Cov + O(eta^2)."""
    z, a = table(seed)
    pi, logs = torch.softmax(z, 0), torch.log_softmax(z, 0)
    covariance = (pi * logs * a).sum() - (pi * logs).sum() * (pi * a).sum()
    errors = [abs(float((entropy(z + eta * a) - entropy(z)) / eta + covariance)) for eta in (1e-2, 1e-3)]
    assert errors[1] < 1e-2
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.2, abs=1e-6)
    fisher = torch.diag(pi) - torch.outer(pi, pi)  # F (A - c) = grad J for any constant c
    torch.testing.assert_close(fisher @ (a - 0.7), policy_gradient(z, a))


def test_inner_product_of_one_token():
    """<grad H, grad log pi_a> = -(u_a - E_pi[u]) with u = pi (log pi + H): the exact form of Lemma 3.2's
    product."""
    z, _ = table(0)
    pi = torch.softmax(z, 0)
    u = pi * (torch.log_softmax(z, 0) + entropy(z))
    for action in range(6):
        push = slope(lambda leaf, action=action: torch.log_softmax(leaf, 0)[action], z)
        torch.testing.assert_close((slope(entropy, z) * push).sum(), -(u[action] - (pi * u).sum()))


def test_sequence_weights_of_appendix_b():
    """Two tokens, all four responses enumerated: the product of ratios gives the exact off-policy gradient; the token
    ratio (GRPO) and the geometric mean (TEPO, GSPO) do not. What TEPO keeps of Appendix B is one weight for the whole
    response, not its value."""
    generator = torch.Generator().manual_seed(0)  # rows of theta: first token; second after 0; after 1
    theta = torch.randn(3, 2, generator=generator, dtype=torch.float64).requires_grad_()
    old = (theta + 0.5 * torch.randn(3, 2, generator=generator, dtype=torch.float64)).detach()
    rewards = {(0, 0): 1.0, (0, 1): -0.5, (1, 0): 0.3, (1, 1): -1.0}

    def logs(table: Tensor, first: int, second: int) -> Tensor:
        return torch.stack([torch.log_softmax(table[0], 0)[first], torch.log_softmax(table[1 + first], 0)[second]])

    def surrogate(weigh) -> Tensor:
        total = torch.zeros(())
        for y, r in rewards.items():
            lp, lo = logs(theta, *y), logs(old, *y)
            total = total + lo.sum().exp() * r * (weigh(lp.detach() - lo) * lp).sum()
        return torch.autograd.grad(total, theta)[0]

    exact = torch.autograd.grad(sum(logs(theta, *y).sum().exp() * r for y, r in rewards.items()), theta)[0]
    torch.testing.assert_close(surrogate(lambda d: d.sum().exp()), exact)
    for biased in (lambda d: d.exp(), lambda d: d.mean().exp()):
        assert (surrogate(biased) - exact).norm() > 0.05 * exact.norm()
