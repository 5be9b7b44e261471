"""Every row, and the readings and options that look at more than one token."""

from typing import Any

import yaml

from tepo.objectives import names
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
    "seq_mask_tis, sum of k3": ("seq_mask_tis", {"correction": {"estimator": "k3", "over": "sum", "high": 0.01}}),
    "tepo_no_kl, product": ("tepo_no_kl", {"ratio": {"mean": "product"}}),
    "tepo_no_kl, hard clip": ("tepo_no_kl", {"surrogate": {"kind": "hard_clip", "low": 0.1, "high": 0.15}}),
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
