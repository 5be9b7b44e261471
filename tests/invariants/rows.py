"""Every row; readings and options that look at more than one token, as changed lines; and the few objectives that
together have every name and function of the language."""

import re
from functools import cache
from typing import Any

from tepo.formula.language import FUNCTIONS, GIVEN
from tepo.objectives import Objective, load_objective, names

PPO = "min(w*A, clip(w, 1 - low, 1 + high)*A)"
GAP = "exp(logp_old - logp_sampler)"
PRODUCT = "exp(max(sum_i(logp_old - logp_sampler), -20))"
THEOREM = {  # STEER's size of the entropy change where it takes the ratio and leaves out what the clip stops
    "Om": "sg(abs(w*A*p*(1 - p)*(log(p) + H_old))*~(((A > 0) & (w > 1 + high)) | ((A < 0) & (w < 1 - low))))"
}
LINEAR = {"v": "sg(1.2 + (floor - 1.2)*(Om + max_b(-Om))/(max_b(Om) + max_b(-Om)))"}
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "clip_cov, many": ("clip_cov", {"share": 0.2, "alpha": 0.1}),
    "kl_cov, many": ("kl_cov", {"share": 0.2}),
    "steer, theorem, linear": ("steer", THEOREM | LINEAR),
    "tepo, covariance": ("tepo", {"M": "(A > 0) & (-cov_b(logp, A) < -tol)"}),
    "tepo, omega": ("tepo", {"M": "(A > 0) & (-A*(logp + H_old) < -tol)"}),
    "tepo, mean over the mask": ("tepo", {"J": f"{PPO} - beta*M/mean_b(M)*kl"}),
    "tepo, exact KL": ("tepo", {"kl": "kl_old", "beta": 1}),
    "tepo, r k3": ("tepo", {"kl": "exp(d)*k3(d)", "beta": 1}),
    "tepo, line 21": ("tepo", {"w": "sg(exp(mean_i(d)))*(1 + (d - sg(d))/T)"}),
    "tepo, Eq. 4 to the letter": ("tepo", {"J": "min(w, clip(w, 1 - low, 1 + high))*A - beta*M*kl"}),
    "tepo, exact KL to the initial policy": ("tepo", {"kl": "kl_initial", "beta": 1}),
    "prefix, full gradient": ("prefix_is", {"w": "exp(prefix_mean_i(d))"}),
    "grpo_dapo, group means": ("grpo_dapo", {"average": "groups"}),
    "grpo_dapo, filtered": ("grpo_dapo", {"keep": "finished"}),
    "kl_cov, filtered": ("kl_cov", {"keep": "finished"}),
    "steer, filtered": ("steer", {"keep": "finished"}),
    "grpo_dapo, dual clip, corrected": (
        "grpo_dapo",
        {"v": f"min({GAP}, 2)", "p": PPO, "J": "v*where(A < 0, max(p, 1.5*A), p)"},
    ),
    "grpo_dapo, corrected by sequence": ("grpo_dapo", {"v": f"min({PRODUCT}, 2)", "J": f"v*{PPO}"}),
    "grpo_dapo, without those cut": ("grpo_dapo", {"J": f"finished*{PPO}*(t <= L)"}),
    "opsm, many": ("opsm", {"delta": 0.02}),
    "icepop, many": ("icepop", {"alpha": 0.98, "beta": 1.05}),
    "icepop, many, over their mean": ("icepop", {"k": "u*((u >= 0.8) & (u <= 1.25))", "v": "k/mean_b(k)"}),
    "tis, over their mean, filtered": ("tis", {"u": f"clip({GAP}, 0.5, 1.05)", "v": "u/mean_b(u)", "keep": "finished"}),
    "trm, many": ("trm", {"delta": 0.006}),
    "kpop, many": ("kpop", {"phi": 0.002}),
    "target_po, sums": ("target_po", {"l": "sum_i(logp)", "o": "sum_i(logp_old + A/(eta*T))", "average": "sums"}),
    "maspo, narrow": ("maspo", {"sigma": 0.2}),
    "mhpo, by tanh": ("mhpo", {"psi": "c*tanh(d/c)"}),
    "trm_current, many": ("trm_current", {"delta": 0.2}),
    "trm_current, mean of k3": ("trm_current", {"v": "mean_i(k3(logp_sampler - logp)) <= 0.1"}),
    "seq_mis, many": ("seq_mis", {"cap": 1.02}),
    "mis, many": ("mis", {"cap": 1.05, "alpha": 0.9, "beta": 1.1, "veto": 0.8}),
    "chained_rejection, many": ("chained_rejection", {"cap": 1.05, "alpha": 0.9, "beta": 1.1, "delta": 0.02}),
    "outlier_mask, many": ("outlier_mask", {"alpha": 0.85, "beta": 1.1}),
    "reinforce_pp_no_group, deviation over responses": (
        "reinforce_pp_no_group",
        {"A": "(a - mean_b(a)) / sqrt(std_b(responses(mean_i(a)))**2 + eps)", "beta": 1},
    ),
    "m2po, every token": ("m2po", {"X": "tail_b((logp_old - logp_sampler)**2, T > 0, 1.0e-3)"}),
    "top_entropy_v2, filtered": ("top_entropy_v2", {"keep": "finished"}),
    "tepo_no_kl, to the sampler": ("tepo_no_kl", {"w": "exp(mean_i(logp - logp_sampler))"}),
    "seq_mask_tis, sum of k3": ("seq_mask_tis", {"v": "min(exp(g), cap)*(sum_i(k3(-g)) <= 0.01)"}),
    "tepo_no_kl, product": ("tepo_no_kl", {"w": "exp(sum_i(d))"}),
    "tepo_no_kl, hard clip": ("tepo_no_kl", {"J": "clip(w, 0.9, 1.15)*A"}),
    "gpg, alpha of verl": ("gpg", {"A": "(R - mean_g(R))/mean_r(responses(R != 0))"}),
    "gtpo, all counted": ("gtpo", {"u": "(R > 0) + alpha*share_t(H_old, R > 0)*share_t(tokens(R > 0), T > 0)"}),
    "gtpo, over the batch": ("gtpo", {"A": "(u - mean_r(u))/(std_r(u) + eps)"}),
    "gtpo_clipped, as printed": ("gtpo_clipped", {"P": "where(T > L, 1, clip((T - (1 - buffer)*L)/L, 0, 1))"}),
}


@cache
def variants() -> dict[str, Objective]:
    """Every row and every change, by label."""
    rows = {name: load_objective(name) for name in names()}
    return rows | {label: load_objective(*change) for label, change in CHANGES.items()}


def parts(objective: Objective) -> set[str]:
    """What an objective is made of: given names and functions, those within a mean over all, average, filter."""
    lines = {name: text for name, text in objective.lines.items() if name in objective.read}
    found = {f"average {objective.average}", f"keep {objective.keep}"}
    found |= {word for text in lines.values() for word in re.findall(r"\w+", text) if word in GIVEN | FUNCTIONS}
    return found | {f"plan {node.op} {node.args[0].per} {node.args[0].spelled}" for node in objective.planned}


@cache
def covering() -> dict[str, Objective]:
    """A few objectives that together have all that `variants` have, each the one that adds most: for dear checks."""
    offered = variants()
    missing = set().union(*map(parts, offered.values()))
    chosen: dict[str, Objective] = {}
    while missing:
        label = max(offered, key=lambda label: len(parts(offered[label]) & missing))
        chosen[label] = offered[label]
        missing -= parts(offered[label])
    return chosen
