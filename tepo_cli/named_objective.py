"""The objective that a command line names, with settings of its own. Imports torch."""

from collections.abc import Sequence

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.objectives import Objective, load_objective


def named_objective(name: str, settings: Sequence[str]) -> Objective:
    """The objective of that name, shipped or in `objective/` of TEPO_PATH.

    settings: `KEY=VALUE` below `objective`. Raises UserError for a name or key that does not exist."""
    check_settings(settings)
    if not settings:
        return load_objective(name)
    words = [f"objective.{text.removeprefix('objective.')}" for text in settings]
    return load_objective(
        compose([f"objective={paths.find('objective', name).stem}", "train.kl_estimator=null", *words]).objective
    )


def check_settings(settings: Sequence[str]) -> None:
    """Raises UserError for what is no setting."""
    for text in settings:
        if "=" not in text:
            fix = "write penalty.coefficient=1 for a setting, --vs NAME for an objective to compare with"
            raise UserError(f"not a setting of an objective: {text!r}", fix=fix)
