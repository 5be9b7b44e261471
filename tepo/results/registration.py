"""Since when a claim reads as it does now, by the commits of its file."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from tepo.common.provenance import git


def registered(path: Path) -> dict[str, datetime | None]:
    """For each claim of the file the date of the commit since which it has not changed; None where it differs from the
    last commit, or where no commit is known (an installed package, no git)."""
    now = _by_name(path.read_text(encoding="utf-8"))
    dates: dict[str, datetime | None] = dict.fromkeys(now)
    same = set(now)
    for line in (git(path.parent, "log", "--format=%H %cI", "--", path.name) or "").splitlines():
        commit, _, date = line.partition(" ")
        then = _by_name(git(path.parent, "show", f"{commit}:./{path.name}") or "")
        same = {name for name in same if then.get(name) == now[name]}
        dates.update(dict.fromkeys(same, datetime.fromisoformat(date)))
    return dates


def _by_name(text: str) -> dict[str, Mapping[str, Any]]:
    """The claims of a file as plain data, without what may be said after their runs; none of one that is not such a
    file."""
    try:
        claims = yaml.safe_load(text)["claims"]
        return {claim["name"]: {key: value for key, value in claim.items() if key != "means"} for claim in claims}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError):
        return {}
