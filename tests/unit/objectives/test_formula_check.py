import pytest

from tepo.objectives import Objective, names
from tepo.objectives.check import CHECKS, check_objective
from tests.invariants.rows import covering, variants

HEAD = """
import torch
from tepo.objectives import function

@function(takes="{takes}", gives="{gives}")
def {name}(layout, x):
    return {body}
"""
A = "(R - mean_g(R)) / (std_g(R) + 0.000001)"


def own(name: str, body: str, J: str, takes: str = "token", gives: str = "token", A: str = A) -> Objective:
    text = HEAD.format(name=name, body=body, takes=takes, gives=gives)
    return Objective("mine", {"A": A, "J": J}, {}, functions={"own.py": text})


def failed(objective: Objective) -> dict[str, str]:
    return {check.name: check.wrong for check in check_objective(objective) if check.wrong}


@pytest.mark.parametrize("label", dict.fromkeys([*names(), *covering()]))
def test_every_row_and_every_function_passes(label: str) -> None:
    assert failed(variants()[label]) == {}


TOKEN = "A*exp(f(d))"
FAULTS: dict[str, tuple[str, str, Objective]] = {
    "a gradient is lost": ("gradient", "from finite differences", own("f", "x.detach() + 0.5*(x - x.detach())", TOKEN)),
    "no gradient at all": ("gradient", "the gradient's norm is 0", own("f", "x.detach()", TOKEN)),
    "a mean over the micro-batch": ("micro-batches", "micro-batches: the gradient", own("f", "x - x.mean()", TOKEN)),
    "a metric of the micro-batch": (
        "micro-batches",
        "actor/ratio_mean is",
        Objective("mine", {"A": A, "w": "f(exp(logp_old))", "J": "w*A*0 + A*d"}, {}, functions={
            "own.py": HEAD.format(name="f", body="x*len(x)", takes="token", gives="token")
        }),
    ),
    "the order of responses": (
        "micro-batches", "another order",
        own("f_b", "layout.sequence.to(x.dtype)/36", "A*exp(d)*f_b(logp_old)"),
    ),
    "one rank's tokens": (
        "ranks", "two ranks: the gradient",
        own("f_b", "x.mean()", "A*exp(d)*f_b(logp_old)", gives="number"),
    ),
    "one rank's rewards": (
        "ranks", "other advantages",
        own("f_r", "x.mean()", "A*d", takes="response", gives="number", A="(R - mean_g(R))/f_r(R)"),
    ),
    "too large": ("extremes", "log-ratios of 25: the loss is", Objective("mine", {"A": A, "J": "A*exp(d)**8"}, {})),
    "an infinite slope": (
        "extremes", "the policy that sampled: the gradient", Objective("mine", {"A": A, "J": "A*sqrt(abs(d)) + d"}, {})
    ),
    "a mean that is not exact": (
        "alike", "equal rewards of a group give an advantage of",
        own("f_g", "x + 1e-9", "A*d", takes="response", gives="response", A="R - f_g(mean_g(R))"),
    ),
    "a draw": ("repeated", "other numbers", own("f", "x + torch.rand_like(x)", TOKEN)),
    "an argument changed in place": (
        "repeated", "changed in place", own("f", "x.add_(0.1)", "A*exp(d)*f(H_old)")
    ),
    "digits lost": ("float32", "float32: the gradient", own("f", "(x + 1e4) - 1e4", TOKEN)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    check, says, objective = FAULTS[fault]
    assert says in CHECKS[check](objective)


def test_what_is_wrong_names_the_files() -> None:
    beyond = failed(own("f", "x if len(x) > 2 else x[5]", TOKEN))["micro-batches"]
    assert beyond.startswith("f: IndexError: index 5 is out of bounds")
    assert "(own.py:7)" in beyond
    assert beyond.endswith("; functions of your own: own.py")


def test_every_check_was_seen_to_fail() -> None:
    assert {check for check, *_ in FAULTS.values()} == set(CHECKS)


def test_advantages_without_a_baseline_are_not_asked_for_0() -> None:
    """Those of a group do not add up to 0."""
    assert failed(Objective("mine", {"A": "R", "J": "A*d"}, {})) == {}
