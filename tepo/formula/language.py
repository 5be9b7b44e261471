"""The names of the language: what a formula is given, the functions with what each takes and gives, and averages."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tepo.formula.graph import Function, Per

TOP = 20.0  # exp and k3 are held above exp(20), with no gradient there; verl holds log-ratios at +-20
MOST = 64  # of k in comb(n, k)


@dataclass(frozen=True)
class Given:
    """A name that a formula may read. stage: `rollout`, `loss`, or both (empty). gradient: one flows through it."""

    per: Per
    stage: str
    doc: str
    gradient: bool = False


GIVEN: dict[str, Given] = {
    "R": Given("response", "rollout", "reward"),
    "G": Given("response", "rollout", "responses of the group"),
    "R_k": Given("named", "rollout", "the rewards by name"),
    "weight_k": Given("named", "rollout", "their weights"),
    "T": Given("response", "", "tokens of the response"),
    "t": Given("token", "", "place of the token, from 1"),
    "finished": Given("response", "", "1 where the response ended by itself, 0 where it was cut at the limit"),
    "H_old": Given("token", "", "entropy of the policy that sampled, nats"),
    "L": Given("", "", "the length limit, tokens"),
    "logp": Given("token", "loss", "log-prob of the token", True),
    "logp_old": Given("token", "loss", "log-prob by the policy that sampled, as the trainer computes it"),
    "logp_sampler": Given("token", "loss", "log-prob by the policy that sampled, as the sampler reports it"),
    "logp_initial": Given("token", "loss", "log-prob by the policy before training"),
    "d": Given("token", "loss", "logp - logp_old", True),
    "H": Given("token", "loss", "entropy, nats", True),
    "dH": Given("token", "loss", "H - H_old, without gradient"),
    "kl_old": Given("token", "loss", "exact KL to the policy that sampled, over the vocabulary", True),
    "kl_initial": Given("token", "loss", "exact KL to the policy before training, over the vocabulary", True),
    "N": Given("", "loss", "tokens of the mini-batch, all ranks"),
    "B": Given("", "loss", "responses of the mini-batch that are not empty, all ranks"),
}
HANDED = "(handed over)"  # the value of the rollout that the loss reads, as a given name
AVERAGES = {"tokens": "1/N", "responses": "1/(B*T)", "sums": "1/B", "budget": "1/(B*L)"}
GROUPS = "groups"  # the average that is no expression: tokens within each group, then groups
WORDS = {"": "a number", "response": "one a response", "token": "one a token", "named": "one a named reward"}


def _f(takes: str, gives: str, doc: str, stage: str = "") -> Function:
    return Function(tuple(takes.split()), gives, stage, doc)


FUNCTIONS: dict[str, Function] = {
    "exp": _f("any", "same", "e to the x, held above x = 20 without gradient"),
    "expm1": _f("any", "same", "exp(x) - 1"),
    "log": _f("any", "same", "natural logarithm"),
    "sqrt": _f("any", "same", "square root"),
    "abs": _f("any", "same", "size without sign"),
    "sigmoid": _f("any", "same", "1/(1 + exp(-x))"),
    "k2": _f("any", "same", "x^2/2, the estimate of a KL from the log-ratio x"),
    "k3": _f("any", "same", "exp(-x) - 1 + x, held as a whole below x = -20"),
    "min": _f("any any*", "same", "the smallest"),
    "max": _f("any any*", "same", "the largest"),
    "clip": _f("any any any", "same", "x held between two bounds"),
    "where": _f("condition any any", "same", "the second where the condition holds, else the third"),
    "comb": _f("any number", "same", f"n over k, 0 for n < k; k a constant up to {MOST}"),
    "sg": _f("any", "same", "x without its gradient"),
    "tokens": _f("any", "token", "a response's value on each token"),
    "responses": _f("any", "response", "says that a mean over all is one over responses"),
    "mean_i": _f("token", "response", "mean over the response's tokens; 0 for an empty one"),
    "sum_i": _f("token", "response", "sum over the response's tokens"),
    "max_i": _f("token", "response", "largest over the response's tokens; 0 for an empty one"),
    "prefix_mean_i": _f("token", "token", "mean over the response's tokens up to this one"),
    "mean_g": _f(
        "any any?",
        "same",
        "mean over the group, weighted by a second argument; that of like values is that value exactly",
        "rollout",
    ),
    "std_g": _f("any", "same", "standard deviation over the group", "rollout"),
    "sum_g": _f("any", "same", "sum over the group", "rollout"),
    "max_others_g": _f("any", "same", "largest of the others in the group; alone: its own", "rollout"),
    "share_g": _f(
        "any condition",
        "same",
        "x over its mean among the members of the group, 0 on the others; 1 where all are 0",
        "rollout",
    ),
    "share_t": _f(
        "token condition",
        "token",
        "x over its mean among the members at this position in the group, 0 on the others; 1 where all are 0",
        "rollout",
    ),
    "sum_k": _f("named", "response", "sum over named rewards", "rollout"),
    "mean_r": _f("all", "", "mean over the rollout, all ranks", "rollout"),
    "std_r": _f("all", "", "standard deviation over the rollout, all ranks (n - 1)", "rollout"),
    "mean_b": _f("all", "", "mean over the mini-batch, all ranks", "mini-batch"),
    "max_b": _f("all", "", "largest of the mini-batch, all ranks", "mini-batch"),
    "cov_b": _f("each each", "token", "(x - mean)(y - mean), means over the mini-batch, all ranks", "mini-batch"),
    "top_b": _f(
        "each number",
        "condition",
        "the share of the mini-batch's tokens with the largest x, at least one; ties by lot",
        "mini-batch",
    ),
    "first_b": _f(
        "each number",
        "condition",
        "the share of the mini-batch's tokens with the largest x, at least one; ties by response and position",
        "mini-batch",
    ),
    "draw_b": _f(
        "condition number",
        "condition",
        "so many tokens as the share of the mini-batch's, at least one, drawn among those of the condition",
        "mini-batch",
    ),
}
FOLDED: dict[str, Callable[..., float]] = {  # functions of numbers alone
    "exp": lambda x: math.exp(min(x, TOP)),
    "expm1": lambda x: math.expm1(min(x, TOP)),
    "log": math.log,
    "sqrt": math.sqrt,
    "abs": abs,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "k2": lambda x: x * x / 2,
    "k3": lambda x: math.expm1(-max(x, -TOP)) + max(x, -TOP),
    "min": min,
    "max": max,
    "clip": lambda x, a, b: min(max(x, a), b),
    "comb": lambda n, k: math.prod(max(n - taken, 0) / (taken + 1) for taken in range(int(k))),
    "sg": lambda x: x,
}
