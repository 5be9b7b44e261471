"""Every row, readings and options that look at more than one token, and the few that reach every kind and option."""

from functools import cache
from typing import Any

import yaml

from tepo.objectives import load_objective, names, objective_mapping
from tepo.objectives.loading import text

CHANGES: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "clip_cov, many": ("clip_cov", {"weight": {"fraction": 0.2, "low": 0.1}}),
    "kl_cov, many": ("kl_cov", {"penalty": {"fraction": 0.2}}),
    "steer, theorem, linear": ("steer", {"weight": {"form": "theorem", "shape": "linear", "ceiling": 1.2}}),
    "tepo, covariance": ("tepo", {"penalty": {"entropy_change": "covariance"}}),
    "tepo, omega": ("tepo", {"penalty": {"entropy_change": "omega"}}),
    "tepo, mean over the mask": ("tepo", {"penalty": {"mean_over": "masked"}}),
    "tepo, exact KL": ("tepo", {"penalty": {"estimator": "full", "coefficient": 1.0}}),
    "tepo, r_k3": ("tepo", {"penalty": {"estimator": "r_k3", "coefficient": 1.0}}),
    "tepo, line 21": ("tepo", {"ratio": {"gradient": "line_21"}}),
    "tepo, paper clip": ("tepo", {"surrogate": {"kind": "paper_clip"}}),
    "prefix, full gradient": ("prefix_is", {"ratio": {"gradient": "full"}}),
    "grpo_dapo, group means": ("grpo_dapo", {"aggregation": {"over": "group"}}),
    "gspo, group means": ("gspo", {"aggregation": {"over": "group"}}),
    "grpo_dapo, filtered": ("grpo_dapo", {"overlong": {"kind": "filter"}}),
    "kl_cov, filtered": ("kl_cov", {"overlong": {"kind": "filter"}}),
    "steer, filtered": ("steer", {"overlong": {"kind": "filter"}}),
    "grpo_dapo, dual clip, corrected": ("grpo_dapo", {"surrogate": {"dual": 1.5}, "correction": {"kind": "truncated"}}),
    "grpo_dapo, corrected by sequence": ("grpo_dapo", {"correction": {"kind": "truncated", "level": "sequence"}}),
    "opsm, many": ("opsm", {"weight": {"threshold": 0.02}}),
    "icepop, many": ("icepop", {"correction": {"low": 0.98, "high": 1.05}}),
    "icepop, many, over their mean": ("icepop", {"correction": {"low": 0.8, "high": 1.25, "normalize": True}}),
    "gspo, tokens masked": ("gspo", {"correction": {"kind": "masked", "low": 0.8, "high": 1.25}}),
    "tis, over their mean, filtered": (
        "tis",
        {"correction": {"cap": 1.05, "normalize": True}, "overlong": {"kind": "filter"}},
    ),
    "trm, many": ("trm", {"correction": {"high": 0.006}}),
    "trm_current, many": ("trm_current", {"weight": {"high": 0.2}}),
    "trm_current, mean of k3": ("trm_current", {"weight": {"estimator": "k3", "over": "mean", "high": 0.1}}),
    "top_entropy_v2, filtered": ("top_entropy_v2", {"overlong": {"kind": "filter"}}),
    "tepo_no_kl, to the sampler": ("tepo_no_kl", {"ratio": {"to": "sampler"}}),
    "seq_mask_tis, sum of k3": ("seq_mask_tis", {"correction": {"estimator": "k3", "over": "sum", "high": 0.01}}),
    "tepo_no_kl, product": ("tepo_no_kl", {"ratio": {"mean": "product"}}),
    "tepo_no_kl, hard clip": ("tepo_no_kl", {"surrogate": {"kind": "hard_clip", "low": 0.1, "high": 0.15}}),
}
COMBINED: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {  # options of several axes at once
    "gtpo_v2, local, corrected": (
        "gtpo_v2",
        {
            "ratio": {"level": "sequence", "gradient": "local"},
            "correction": {"kind": "truncated", "level": "sequence", "normalize": True},
            "aggregation": {"over": "group"},
        },
    ),
    "grpo_s_v2, line 21, rejected, exact KL over the mask": (
        "grpo_s_v2",
        {
            "ratio": {"level": "sequence", "gradient": "line_21"},
            "correction": {"kind": "rejected", "estimator": "k3", "over": "sum", "high": 0.05},
            "penalty": {
                "kind": "kl",
                "estimator": "full",
                "tokens": "negative_advantage_rising_entropy",
                "entropy_change": "omega",
                "mean_over": "masked",
            },
            "aggregation": {"over": "group"},
        },
    ),
    "steer, theorem, full prefix, masked, initial policy": (
        "steer",
        {
            "ratio": {"level": "prefix", "gradient": "full"},
            "weight": {"form": "theorem", "shape": "linear", "ceiling": 1.2},
            "correction": {"kind": "masked", "low": 0.8, "high": 1.25, "normalize": True},
            "penalty": {"kind": "kl", "estimator": "k2_response", "anchor": "initial"},
        },
    ),
    "dppo_kl, both sides, a largest gap, covariance": (
        "dppo_kl",
        {
            "surrogate": {"sides": "both"},
            "correction": {"kind": "rejected", "estimator": "k2", "over": "max"},
            "penalty": {"kind": "kl", "estimator": "r_k3", "tokens": "either", "entropy_change": "covariance"},
        },
    ),
}
SPLIT_DEPENDENT: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "grpo_dapo, per micro-batch": ("grpo_dapo", {"aggregation": {"over": "micro_batch"}}),
    "kl_cov, per micro-batch": ("kl_cov", {"penalty": {"scope": "micro_batch", "fraction": 0.2}}),
    "clip_cov, per micro-batch": ("clip_cov", {"weight": {"scope": "micro_batch", "fraction": 0.2, "low": 0.1}}),
    "top_entropy, per micro-batch": ("top_entropy", {"weight": {"scope": "micro_batch"}}),
    "steer, per micro-batch": ("steer", {"weight": {"scope": "micro_batch"}}),
}


def changed(name: str, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A shipped row with settings changed; `kind` replaces an axis."""
    mapping = yaml.safe_load(text(name))
    for axis, settings in changes.items():
        mapping[axis] = settings if "kind" in settings else {**mapping.get(axis, {}), **settings}
    return mapping


def variants() -> dict[str, Any]:
    """Label -> what `load_objective` takes."""
    return {name: name for name in names()} | {label: changed(*change) for label, change in CHANGES.items()}


def options(source: Any) -> set[tuple[Any, ...]]:
    """The kinds of an objective, and of each the words, the switches, and the numbers that may be left out."""
    found: set[tuple[Any, ...]] = set()
    for axis, parts in objective_mapping(load_objective(source)).items():
        for part in (parts if isinstance(parts, list) else [parts]) if axis != "name" else []:
            kind = part["level" if axis == "ratio" else "kind"]
            found.add((axis, kind))
            for key, value in part.items():
                found.add((axis, kind, key, value if isinstance(value, str | bool | None) else "a number"))
    return found


@cache
def covering() -> dict[str, Any]:
    """Some forty compositions that together have every kind and option of `variants`, each the one that adds most.

    What must not change a result follows from kinds and their branches: these run the dear checks, and every row a
    cheap one."""
    offered = {label: changed(*change) for label, change in COMBINED.items()} | variants()
    adds = {label: options(source) for label, source in offered.items()}
    missing = set().union(*(options(source) for source in variants().values()))
    chosen: dict[str, Any] = {}
    while missing:
        label = max(adds, key=lambda label: len(adds[label] & missing))
        chosen[label] = offered[label]
        missing -= adds[label]
    return chosen
