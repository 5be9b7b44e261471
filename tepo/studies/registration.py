"""Registration of claims: a check that runs began at commits that hold their claim."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tepo.common.errors import UserError
from tepo.common.provenance import git
from tepo.studies.claims import AFTERWARDS, OWN, Claim


def check_registered(claim: Claim, run: str, sessions: Iterable[Mapping[str, Any]]) -> None:
    """Raise UserError unless each process that trained a run began at a commit that holds the claim as it reads today.

    That is the commit of the code. A file of the user's own lies in another repository: there it is the one that was
    the last when the process began. What may be written afterwards is not compared; the names of the claims of its
    batch and how that is tested are, as they decide with it."""
    now = _wording(claim, claim.file.read_text(encoding="utf-8"))
    trained = [session for session in sessions if session.get("what") == "train"]
    for session in trained or [{}]:
        commit = _commit(claim, session)
        if session.get("dirty"):
            why = "was made by code that differs from its commit"
        elif commit is None:
            why = "is of no commit that is known"
        elif _wording(claim, _text(claim.file.parent, claim.file.name, commit)) != now:
            why = f"began at commit {commit[:8]}, which does not hold the claim and its batch as they read today"
        else:
            continue
        fix = "commit the claim, then run it in another store: a claim is registered by a commit before its runs"
        raise UserError(f"a run of the claim {claim.name} {why}", where=f"run {run}, {claim.file}", fix=fix)


def _commit(claim: Claim, session: Mapping[str, Any]) -> str | None:
    if not claim.family.startswith(OWN):
        return session.get("commit")
    started = session.get("started")
    last = started and git(claim.file.parent, "rev-list", "-1", f"--before={started}", "HEAD")
    return last.strip() or None if last else None


def _wording(claim: Claim, text: str) -> Any:
    """Wording of a claim in the text of a file, with the names in its batch and how that is tested; None where the file
    does not hold it."""
    try:
        document = yaml.safe_load(text)
        batch = [one for one in document["claims"] if str(one.get("batch", 1)) == str(claim.batch)]
        (own,) = [one for one in batch if one["name"] == claim.name]
        how = {str(key): value for key, value in document.get("batches", {}).items()}.get(str(claim.batch))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError):
        return None
    kept = {key: value for key, value in own.items() if key not in AFTERWARDS}
    return kept, [one["name"] for one in batch], how


@cache
def _text(folder: Path, name: str, commit: str) -> str:
    return git(folder, "show", f"{commit}:./{name}") or ""
