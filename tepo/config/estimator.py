"""The KL estimator of a run, written into its objective: what is saved and shown is what the loss is computed with."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tepo.common.errors import UserError
from tepo.common.kl_estimators import DEFAULT, KlEstimator


def resolved(
    objective: Mapping[str, Any], estimator: KlEstimator | None, given: Iterable[tuple[str, str]]
) -> dict[str, Any]:
    """The mapping of an objective with `train.kl_estimator` in the place of k3, the estimator of every KL written out.

    given: the user's overrides, (key, value). Raises UserError where it would replace a k3 that the user asked for.
    """
    if estimator not in (None, DEFAULT):
        for key, value in given:
            if key.startswith("objective.penalty") and re.search(rf"\b{DEFAULT}\b", value):
                what = f"train.kl_estimator={estimator} takes the place of {DEFAULT}"
                raise UserError(what, where=f"{key}={value}", fix="add train.kl_estimator=null")
    if "penalty" not in objective:
        return dict(objective)
    return {**objective, "penalty": _resolved(objective["penalty"], estimator or DEFAULT)}


def _resolved(penalty: Any, estimator: str) -> Any:
    """A penalty, or a list of them, as `tepo.objectives` takes it."""
    if isinstance(penalty, list):
        return [_resolved(part, estimator) for part in penalty]
    if penalty == "kl":
        return {"kind": "kl", "estimator": estimator}
    if isinstance(penalty, Mapping) and penalty.get("kind") == "kl" and penalty.get("estimator", DEFAULT) == DEFAULT:
        return {**penalty, "estimator": estimator}
    return penalty
