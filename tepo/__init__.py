"""Regenerate the tables of TEPO and GTPO / GRPO-S from declarative experiments, at two scales.

From Python: `tepo.run`, `tepo.results`, `tepo.train`, `tepo.grade`, `tepo.load_objective` (docs/store.md).
`__init__.pyi` has their
types. Each is imported when it is first asked for: `import tepo` alone loads neither torch nor pandas.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_WHERE = {
    "run": "tepo.api",
    "results": "tepo.api",
    "train": "tepo.api",
    "grade": "tepo.api",
    "load_objective": "tepo.objectives",
    "StudyResult": "tepo.analysis.study_result",
    "RunResult": "tepo.analysis.run_result",
    "GraderOptions": "tepo.problems.grader",
    "Verdict": "tepo.problems.grader",
    "UserError": "tepo.common.errors",
    "RunFailed": "tepo.common.errors",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
