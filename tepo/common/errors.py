"""Errors meant for people: what was wrong, where, and what to do."""

import difflib
import re
from collections.abc import Iterable

BUSY = 3  # exit code of a process that found what it needs in the hands of another


class UserError(Exception):
    """A mistake the user can fix. The command line prints it without a traceback and exits with `exit_code`."""

    def __init__(self, what: str, *, where: str = "", fix: str = "", exit_code: int = 2):
        self.what, self.where, self.fix, self.exit_code = what, where, fix, exit_code
        super().__init__("\n".join(part for part in (what, where and f"in: {where}", fix and f"try: {fix}") if part))


class RunFailed(UserError):
    """A run that had to stop (NaN loss, no valid group, log-prob gap …):
    exit code 1, the last checkpoint stays good."""

    def __init__(self, what: str, *, where: str = "", fix: str = ""):
        super().__init__(what, where=where, fix=fix, exit_code=1)


class Diverged(RunFailed):
    """The policy is no distribution any more: its loss or its probabilities are not numbers. Training that broke it
    ends there with its last weights; anything else fails."""


_FEW = 12  # names that are listed beside the nearest one


def unknown_name(kind: str, name: str, known: Iterable[str], *, where: str = "") -> UserError:
    """The error for a name that does not exist, with the nearest valid one: that begins with it or has it as a part
    (dapo of grpo_dapo), else by spelling. All are listed where none is near, or where they are few."""
    known = sorted(known)
    starting = [longer for longer in known if name and longer.startswith(name)]
    near = (
        starting
        or [longer for longer in known if name in re.split(r"[._-]", longer)]
        or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    )
    listed = "" if near and len(known) > _FEW else f"valid: {', '.join(known)}"
    fix = " ".join(filter(None, (f"did you mean {near[0]!r}?" if near else "", listed)))
    return UserError(f"unknown {kind} {name!r}", where=where, fix=fix)
