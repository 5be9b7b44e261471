"""`tepo explain --check`: every row passes, and each check fails where what it is for is broken, in a function of a
user's own or in the formula at work."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.formula.needs import Needs
from tepo.objectives import Groups, Loss, Objective, Plan, TokenBatch, load_objective, names
from tepo.objectives.check import CHECKS, check_objective, check_runs

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


@pytest.mark.parametrize("name", names())
def test_every_row_passes(name: str) -> None:
    assert failed(load_objective(name)) == {}


TOKEN = "A*exp(f(d))"
FAULTS: dict[str, tuple[str, str, Objective]] = {
    "a gradient is lost": ("gradient", "from finite differences", own("f", "x.detach() + 0.5*(x - x.detach())", TOKEN)),
    "a number taken out of the graph": ("gradient", "from finite", own("f", "x.new_tensor(x.tolist()) * x", TOKEN)),
    "no gradient at all": ("gradient", "the gradient's norm is 0", own("f", "x.detach()", TOKEN)),
    "a mean over the micro-batch": ("micro-batches", "micro-batches: the gradient", own("f", "x - x.mean()", TOKEN)),
    "a count of the micro-batch": ("micro-batches", "micro-batches: the gradient", own("f", "x*len(x)/99", TOKEN)),
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
    "an argument changed in its place": (
        "repeated", "changed in its place", own("f", "x.add_(0.1)", "A*exp(d)*f(H_old)")
    ),
    "digits lost": ("float32", "float32: the gradient", own("f", "(x + 1e4) - 1e4", TOKEN)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    check, says, objective = FAULTS[fault]
    assert says in CHECKS[check](objective)


def test_a_function_without_a_fault_passes() -> None:
    assert failed(own("f", "x.tanh()", TOKEN)) == {}


def test_what_is_wrong_names_the_files() -> None:
    found = failed(own("f", "x + torch.rand_like(x)", TOKEN))
    assert found["repeated"].endswith("; functions of your own: own.py")
    beyond = failed(own("f", "x if len(x) > 2 else x[5]", TOKEN))["micro-batches"]
    assert beyond.startswith("f: IndexError: index 5 is out of bounds")
    assert "(own.py:7)" in beyond


class Broken(Objective):
    """tepo, whose KL acts where its entropy falls, with one fault."""

    @classmethod
    def made(cls) -> Objective:
        return cls(**{name: getattr(load_objective("tepo"), name) for name in cls.__dataclass_fields__})


class WrongSlope(Broken):
    def loss(self, batch: TokenBatch, plan: Plan) -> Loss:
        out = super().loss(batch, plan)
        return replace(out, loss=out.loss.detach() + 1.1 * (out.loss - out.loss.detach()))


class Unguarded(Broken):
    def _nan_guard(self, batch: TokenBatch) -> Tensor:
        return torch.ones(())


class Forgiving(Broken):
    def advantages(self, groups: Groups, comm: Any = None) -> Tensor:
        return super().advantages(groups, comm).nan_to_num()


class Silent(Broken):
    @property
    def needs(self) -> Needs:
        return replace(super().needs, entropies=False)


class Greedy(Broken):
    @property
    def needs(self) -> Needs:
        return replace(super().needs, sampler_logprobs=True)


class Curt(Broken):
    """Says nothing of what is missing."""

    def loss(self, batch: TokenBatch, plan: Plan) -> Loss:
        batch.entropies.sum()  # type: ignore[union-attr]
        return super().loss(batch, plan)


class Divided(Broken):
    """By the tokens of the micro-batch."""

    def prepare(self, batch: TokenBatch, comm: Any = None, salt: int = 0) -> Plan:
        return super().prepare(batch, None, salt)


BROKEN: dict[type[Broken], tuple[str, str]] = {
    WrongSlope: ("gradient", "from finite differences"),
    Unguarded: ("nan", "a NaN in `entropies` makes a loss that is a number"),
    Forgiving: ("nan", "a NaN reward makes an advantage that is a number"),
    Silent: ("needs", "it reads what `needs` does not name: the objective tepo reads `entropies`"),
    Greedy: ("needs", "`needs` names sampler_logprobs, and nothing misses it"),
    Curt: ("needs", "without `entropies` it ends with: AttributeError"),
    Divided: ("ranks", "two ranks: the gradient differs"),
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_formula_is_found(kind: type[Broken]) -> None:
    check, says = BROKEN[kind]
    assert says in CHECKS[check](kind.made())


def test_a_gradient_of_entropies_that_is_not_named() -> None:
    class Hidden(Objective):
        @property
        def needs(self) -> Needs:
            return replace(super().needs, entropy_gradient=False)

    shipped = load_objective("tepo_max_entropy")
    made = Hidden(**{name: getattr(shipped, name) for name in Objective.__dataclass_fields__})
    assert failed(made) == {"needs": "it depends on the gradient of the entropies, which `needs` does not name"}


def test_every_check_was_seen_to_fail() -> None:
    assert {check for check, *_ in [*FAULTS.values(), *BROKEN.values()]} == set(CHECKS)


def test_advantages_without_a_baseline_are_not_asked_for_0() -> None:
    """Those of a group do not add up to 0."""
    assert failed(Objective("mine", {"A": "R", "J": "A*d"}, {})) == {}


def test_training_asks_first_whether_a_function_runs() -> None:
    check_runs(own("f", "x.tanh()", TOKEN))
    check_runs(load_objective("tepo"))
    with pytest.raises(UserError, match="f: AttributeError") as caught:
        check_runs(own("f", "x.tahn()", TOKEN))
    assert caught.value.where == "own.py:7"
    with pytest.raises(UserError, match="f gives float64"):  # in the float32 of training
        check_runs(own("f", "x.double()", TOKEN))
    with pytest.raises(UserError, match="f gives float32"):
        check_objective(own("f", "x.float()", TOKEN))
