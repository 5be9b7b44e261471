"""The KL estimator that a configuration trains with, written into its objective: what is saved and shown is what the loss is of."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tepo.errors import UserError, unknown_name

DEFAULT = "k3"  # of tepo.objectives.penalty.Kl
ESTIMATORS = ("k1", "k2", "k3", "abs", "r_k3", "full")  # those of tepo.objectives.penalty, which imports torch


def resolved(objective: Mapping[str, Any], estimator: str | None, overrides: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The mapping of an objective with `train.kl_estimator` in the place of k3, and the estimator of every KL written out.

    overrides: (key, value) as the user gave them. Raises UserError for an unknown estimator, and for one that would replace a k3
    that the user asked for.
    """
    if estimator is not None and estimator not in ESTIMATORS:
        raise unknown_name("KL estimator", estimator, ESTIMATORS, where="train.kl_estimator")
    if estimator not in (None, DEFAULT):
        for key, value in overrides:
            if key.startswith("objective.penalty") and re.search(rf"\b{DEFAULT}\b", value):
                what = f"train.kl_estimator={estimator} takes the place of {DEFAULT}"
                raise UserError(what, where=f"{key}={value}", fix="add train.kl_estimator=null")
    return {**objective, "penalty": _resolved(objective["penalty"], estimator or DEFAULT)} if "penalty" in objective else dict(objective)


def _resolved(penalty: Any, estimator: str) -> Any:
    """A penalty, or a list of them, as `tepo.objectives` takes it."""
    if isinstance(penalty, list):
        return [_resolved(part, estimator) for part in penalty]
    if penalty == "kl":
        return {"kind": "kl", "estimator": estimator}
    if isinstance(penalty, Mapping) and penalty.get("kind") == "kl" and penalty.get("estimator", DEFAULT) == DEFAULT:
        return {**penalty, "estimator": estimator}
    return penalty
