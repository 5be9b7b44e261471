"""The names of the language: what a formula is given, the functions with what each takes and gives, and averages."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tepo.formula.graph import Function, Per

TOP = 20.0  # exp and k3 are held above exp(20), with no gradient there; verl holds log-ratios at +-20
MOST = 64  # of k in comb(n, k)


@dataclass(frozen=True)
class Given:
    """A name that a formula may read."""

    per: Per
    stage: str  # `rollout`, `loss`, or empty: both
    doc: str
    gradient: bool = False  # one flows through it
    field: str = ""  # of `Groups` or `TokenBatch`, that it is


GIVEN: dict[str, Given] = {
    "R": Given("response", "rollout", "reward"),
    "G": Given("response", "rollout", "responses of the group"),
    "V": Given("response", "rollout", "tracked success rate of the prompt, before this rollout", field="values"),
    "R_k": Given("named", "rollout", "the rewards by name"),
    "weight_k": Given("named", "rollout", "their weights"),
    "T": Given("response", "", "tokens of the response"),
    "t": Given("token", "", "position of the token, from 1"),
    "finished": Given(
        "response", "", "1 where the response ended by itself, 0 where it was cut at the limit", field="finished"
    ),
    "H_old": Given("token", "", "entropy of the policy that sampled, nats", field="old_entropies"),
    "L": Given("", "", "the length limit, tokens", field="max_new_tokens"),
    "logp": Given("token", "loss", "log-prob of the token", True, "logprobs"),
    "logp_old": Given(
        "token", "loss", "log-prob by the policy that sampled, as the trainer computes it", field="old_logprobs"
    ),
    "logp_sampler": Given(
        "token", "loss", "log-prob by the policy that sampled, as the sampler reports it", field="sampler_logprobs"
    ),
    "logp_initial": Given("token", "loss", "log-prob by the policy before training", field="initial_logprobs"),
    "logp_teacher": Given("token", "loss", "log-prob by another model, `model.teacher`", field="teacher_logprobs"),
    "d": Given("token", "loss", "logp - logp_old", True, "logprobs"),
    "H": Given("token", "loss", "entropy, nats", True, "entropies"),
    "dH": Given("token", "loss", "H - H_old, without gradient"),
    "kl_old": Given("token", "loss", "exact KL to the policy that sampled, over the vocabulary", True, "full_kl"),
    "kl_initial": Given(
        "token", "loss", "exact KL to the policy before training, over the vocabulary", True, "full_kl"
    ),
    "N": Given("", "loss", "tokens of the mini-batch, all ranks"),
    "B": Given("", "loss", "responses of the mini-batch that are not empty, all ranks"),
}
HANDED = "(handed over)"  # the value of the rollout that the loss reads, as a given name
AVERAGES = {"tokens": "1/N", "responses": "1/(B*T)", "sums": "1/B", "budget": "1/(B*L)"}
GROUPS = "groups"  # the average that is no expression: tokens within each group, then groups
WORDS = {"": "a number", "response": "one per response", "token": "one per token", "named": "one per named reward"}


ENDS = {"g": "rollout", "t": "rollout", "r": "rollout", "k": "rollout", "b": "mini-batch", "gb": "mini-batch"}


def stage_of(name: str) -> str:
    """The stage in which a function is computed, by the end of its name; empty for any."""
    start, _, end = name.rpartition("_")
    return ENDS.get(end, "") if start else ""


_SHIPPED = {  # what a function takes, what it gives, and its line in the documentation
    "exp": ("any", "same", "e to the x, held above x = 20 without gradient"),
    "expm1": ("any", "same", "exp(x) - 1"),
    "log": ("any", "same", "natural logarithm"),
    "sqrt": ("any", "same", "square root"),
    "abs": ("any", "same", "size without sign"),
    "sigmoid": ("any", "same", "1/(1 + exp(-x))"),
    "tanh": ("any", "same", "hyperbolic tangent, from -1 to 1"),
    "k2": ("any", "same", "x^2/2, the estimate of a KL from the log-ratio x"),
    "k3": ("any", "same", "exp(-x) - 1 + x, held as a whole below x = -20"),
    "min": ("any any*", "same", "the smallest"),
    "max": ("any any*", "same", "the largest"),
    "clip": ("any any any", "same", "x held between two bounds"),
    "where": ("condition any any", "same", "the second where the condition holds, else the third"),
    "comb": ("any number", "same", f"n over k, 0 for n < k; k a constant up to {MOST}"),
    "sg": ("any", "same", "x without its gradient"),
    "tokens": ("unnamed", "token", "a response's value, or a number, on each token"),
    "responses": ("response", "response", "says that a mean over all is one over responses"),
    "mean_i": ("token", "response", "mean over the response's tokens; 0 for an empty one"),
    "sum_i": ("token", "response", "sum over the response's tokens"),
    "max_i": ("token", "response", "largest over the response's tokens; 0 for an empty one"),
    "prefix_mean_i": ("token", "token", "mean over the response's tokens up to this one"),
    "mean_g": (
        "several several?",
        "same",
        "mean over the group, weighted by a second argument; exact if all are equal",
    ),
    "std_g": ("several", "same", "standard deviation over the group"),
    "sum_g": ("several", "same", "sum over the group"),
    "max_others_g": ("several", "same", "largest of the others in the group; for a group of one, its own"),
    "share_g": (
        "several condition",
        "same",
        "x over its mean among the group's members, 0 on others; 1 where all are 0",
    ),
    "share_t": ("token condition", "token", "as share_g, among the members at this position in the group"),
    "sum_k": ("named", "response", "sum over named rewards"),
    "mean_r": ("all", "", "mean over the rollout, all ranks"),
    "std_r": ("all", "", "standard deviation over the rollout, all ranks (n - 1)"),
    "mean_b": ("all", "", "mean over the mini-batch, all ranks"),
    "std_b": ("all", "", "standard deviation over the mini-batch, all ranks (n - 1)"),
    "max_b": ("all", "", "largest of the mini-batch, all ranks"),
    "sum_gb": ("response", "response", "sum over the group's responses in the mini-batch, all ranks"),
    "max_gb": ("response", "response", "largest of the group's responses in the mini-batch, all ranks"),
    "cov_b": ("each each", "token", "(x - mean)(y - mean), means over the mini-batch, all ranks"),
    "top_b": (
        "each share",
        "condition",
        "true for the share of the batch's tokens with the largest x, at least one; ties are drawn",
    ),
    "first_b": ("each share", "condition", "as top_b, but ties go to the first response and position"),
    "draw_b": (
        "condition share",
        "condition",
        "true for a random share of the batch's tokens, at least one, drawn where x holds",
    ),
    "tail_b": (
        "each condition number",
        "condition",
        "true for the fewest tokens with the largest x, among those where the condition holds, without which the "
        "mean of the rest is at most the number; ties go to the first response and position",
    ),
}
FUNCTIONS: dict[str, Function] = {
    name: Function(tuple(takes.split()), gives, stage_of(name), doc) for name, (takes, gives, doc) in _SHIPPED.items()
}
OPERATORS: dict[str, Callable[..., Any]] = {  # of numbers and of tensors
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "neg": operator.neg, "&": operator.and_, "|": operator.or_, "~": operator.invert,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
FOLDED: dict[str, Callable[..., float]] = {  # functions of numbers alone
    "exp": lambda x: math.exp(min(x, TOP)),
    "expm1": lambda x: math.expm1(min(x, TOP)),
    "log": math.log,
    "sqrt": math.sqrt,
    "abs": abs,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.expm1(-max(x, -TOP)) + max(x, -TOP),
    "min": min,
    "max": max,
    "clip": lambda x, a, b: min(max(x, a), b),
    "comb": lambda n, k: math.prod(max(n - taken, 0) / (taken + 1) for taken in range(int(k))),
    "sg": lambda x: x,
}
