"""Errors meant for people: what was wrong, where, and what to do."""

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher

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


_FEW = 12  # names that are listed beside the nearest ones
_MOST = 3  # nearest ones that are named
_LONGEST = 60  # letters that are compared


def unknown_name(
    kind: str, name: str, known: Iterable[str], *, where: str = "", labels: Mapping[str, str] | None = None
) -> UserError:
    """The error for a name that does not exist, with the nearest valid ones. All are listed where none is near, or
    where they are few; of a dotted key those of its section. labels: as in `nearest`."""
    known = sorted(known)
    near = nearest(name, known, labels)
    known = _section(name, known) or known
    *others, last = map(repr, near or [""])
    guess = f"{', '.join(others)} or {last}" if others else last
    listed = "" if near and len(known) > _FEW else f"valid: {', '.join(known)}"
    fix = " ".join(filter(None, (f"did you mean {guess}?" if near else "", listed)))
    return UserError(f"unknown {kind} {name!r}", where=where, fix=fix)


def nearest(name: str, known: Iterable[str], labels: Mapping[str, str] | None = None) -> list[str]:
    """Valid names that may be meant by a wrong one, the likeliest first, at most three. Case, blanks and signs do not
    count. First the same name; then those that begin with it, or have it as a part (dapo of grpo_dapo) or as initials;
    then those that the fewest mistakes make of it, or else of their beginning. A dotted key is looked for in its
    section, and then by its last part in all; what is left is told by its own parts (tokens for token_mean). labels:
    other words for valid names."""
    known, last, inside = list(known), name.rpartition(".")[2], _section(name, known)
    words = [(key.rpartition(".")[2], key) for key in inside or (known if last == name else ())]
    words += [] if inside else [*zip(known, known, strict=True), *(labels or {}).items()]
    target, ranks = _letters(last if inside else name)[:_LONGEST], []
    forgiven = (len(target) + 1) // 3
    for word, valid in words if target else ():
        letters, parts = _letters(word), [*map(_letters, re.split(r"[._-]", word))]
        whole, begun = _mistakes(target, letters)
        starts = forgiven and (begun == 0 or target == "".join(part[:1] for part in parts))
        if whole <= forgiven or starts or target in parts:
            rank = 0 if whole == 0 else 1 if starts or target in parts else 1 + whole
        elif begun <= forgiven and len(target) > 3:
            rank = _LONGEST + begun
        else:
            continue
        ranks.append((rank, letters[:1] != target[:1], -SequenceMatcher(None, target, letters).ratio(), valid))
    matches = [valid for rank, *_, valid in sorted(ranks) if rank == min(ranks)[0]]
    matches = matches or [key for key in known if last != name and key.rpartition(".")[2] == last]
    for part in re.split(r"[_-]", name[:_LONGEST]) if not matches else ():
        if part != name and len(part) > 3:
            matches += nearest(part, known, labels)
    return list(dict.fromkeys(matches))[:_MOST]


def _section(name: str, keys: Iterable[str]) -> list[str]:
    """The keys of the section that a dotted key names."""
    section, dot, _ = name.rpartition(".")
    return [key for key in keys if dot and key.startswith(f"{section}.")]


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text.casefold())


def _mistakes(text: str, target: str) -> tuple[int, int]:
    """How many mistakes make the text of the target, and of its beginning: a letter too many, too few or wrong, or
    two that changed places (the optimal string alignment distance)."""
    before, row = list[int](), list(range(len(target) + 1))
    for i, letter in enumerate(text):
        earlier, before, row = before, row, [i + 1]
        for j, target_letter in enumerate(target):
            costs = [before[j + 1] + 1, row[j] + 1, before[j] + (letter != target_letter)]
            if i and j and letter == target[j - 1] and text[i - 1] == target_letter:
                costs.append(earlier[j - 1] + 1)
            row.append(min(costs))
    return row[-1], min(row)
