"""The file of claims through the commits of its repository: since when each claim reads as it does, how it read before,
when its batch was frozen, and the hash that stamps a batch."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from tepo.common.provenance import git
from tepo.common.text import counted

Wording = Mapping[str, Any]
_AFTERWARDS = "means"  # the one key that may be written after the runs
_OF_AXES = {  # words of the claims that were written before objectives were formulas
    "objective.penalty.coefficient": "objective.beta",
    "objective.surrogate.low": "objective.low",
    "objective.surrogate.high": "objective.high",
    "objective.penalty.estimator=k3": "objective.kl=k3(d)",
    "objective.aggregation.kind=seq_mean_token_mean": "objective.average=responses",
}
_AXIS = re.compile("^(?:" + "|".join(map(re.escape, _OF_AXES)) + ")(?==|$)")


@dataclass(frozen=True)
class Version:
    """The claims of the file by name, as plain data; commit and date are None for the file as it lies here."""

    commit: str | None
    date: datetime | None
    claims: Mapping[str, Wording]

    @property
    def registered(self) -> dict[str, Wording]:
        """Registered wording of each claim."""
        return {name: _registered(claim) for name, claim in self.claims.items()}

    def batch(self, number: int) -> dict[str, Wording]:
        """Registered wording of the claims of a batch that can be run."""
        return {
            name: claim
            for name, claim in self.registered.items()
            if _batch_of(claim) == number and not claim.get("needs")
        }


@dataclass(frozen=True)
class Change:
    """A version in which a claim reads otherwise than before; empty where it is not in the file."""

    version: Version
    before: Wording
    after: Wording

    @property
    def lines(self) -> list[str]:
        """Time, commit and keys: all keys of a new claim, of another those that changed, old and new."""
        commit, date = self.version.commit, self.version.date
        when = f"{minute(date)}  {commit[:8]}" if date and commit else "not committed"
        if not self.after:
            return [f"{when}  removed"]
        if not self.before:
            wording = (f"    {key}: {_shown(value)}" for key, value in self.after.items() if key != "name")
            return [f"{when}  stated", *wording]
        lines = [f"{when}  changed"]
        for key in dict.fromkeys([*self.before, *self.after]):
            old, new = self.before.get(key), self.after.get(key)
            if old != new:
                note = " (may be written after the runs)" if key == _AFTERWARDS else ""
                lines += [f"    {key}{note}", f"        was  {_shown(old)}", f"        is   {_shown(new)}"]
        return lines


@dataclass(frozen=True)
class ClaimHistory:
    """committed: the versions of the file that hold readable claims, oldest first; none where no commit is known (an
    installed package, no git). now: the file as it lies here."""

    committed: tuple[Version, ...]
    now: Version

    @classmethod
    def read(cls, path: Path) -> "ClaimHistory":
        """The history of a file, also under earlier names."""
        found, name = [], f"./{path.name}"
        words = ("log", "--follow", "--name-only", "--format=%x00%H %cI", "--", path.name)
        log = git(path.parent, "-c", "core.quotePath=false", *words)
        for entry in (log or "").split("\0")[1:]:
            first, *names = filter(None, entry.splitlines())
            commit, _, date = first.partition(" ")
            name = names[-1] if names else name  # a merge names no file
            text = git(path.parent, "show", f"{commit}:{name}") or ""
            if claims := _by_name(text):
                found.append(Version(commit, datetime.fromisoformat(date), claims))
        return cls(tuple(reversed(found)), Version(None, None, _by_name(path.read_text(encoding="utf-8"))))

    @cached_property
    def registered(self) -> dict[str, datetime | None]:
        """Date of the commit since which each claim of the file has not changed; None where it differs from the last
        commit, or where none is known."""
        now = self.now.registered
        dates: dict[str, datetime | None] = dict.fromkeys(now)
        same = set(now)
        for version in reversed(self.committed):
            then = version.registered
            same = {name for name in same if then.get(name) == now[name]}
            dates.update(dict.fromkeys(same, version.date))
        return dates

    def batch_dates(self, number: int) -> list[datetime]:
        """Dates of the commits that changed the claims of a batch that can be run: the first registered it, since the
        last it is frozen. Empty where none is known."""
        dates: list[datetime] = []
        before: dict[str, Wording] = {}
        for version in self.committed:
            if version.date and (batch := version.batch(number)) != before:
                dates.append(version.date)
                before = batch
        return dates

    def is_late(self, name: str) -> bool:
        """Tell whether a claim came to read as it does after its batch was first registered."""
        date = self.registered[name]
        return date is not None and date > self.batch_dates(_batch_of(self.now.claims[name]))[0]

    @property
    def names(self) -> list[str]:
        """Every claim that ever stood in the file, removed ones last."""
        known = [*self.now.claims, *(name for version in self.committed for name in version.claims)]
        return list(dict.fromkeys(known))

    def lines(self, name: str) -> list[str]:
        """Every wording of a claim and the dates of its batch, as lines of text."""
        lines = [line for change in self._changes(name) for line in change.lines]
        if name in self.now.claims:
            batch = _batch_of(self.now.claims[name])
            if dates := self.batch_dates(batch):
                changed = f", changed {counted(len(dates) - 1, 'time')} since" if dates[1:] else ""
                lines.append(f"batch {batch}: registered {minute(dates[0])}{changed}, frozen since {minute(dates[-1])}")
        return lines

    def _changes(self, name: str) -> Iterator[Change]:
        """Changes of a claim, the oldest first; the last one may be not committed."""
        before: Wording = {}
        for version in (*self.committed, self.now):
            after = version.claims.get(name, {})
            if after != before:
                yield Change(version, before, after)
                before = after


@dataclass(frozen=True)
class Stamp:
    """Hashes of a batch: of each claim that it registers, and of them all."""

    claims: Mapping[str, str]

    @classmethod
    def of(cls, version: Version, batch: int) -> "Stamp":
        """Hash of each claim in canonical form: JSON in UTF-8, keys sorted, no blanks."""
        texts = {
            name: json.dumps(claim, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
            for name, claim in version.batch(batch).items()
        }
        return cls({name: sha256(text.encode()).hexdigest() for name, text in texts.items()})

    @property
    def lines(self) -> str:
        """Hash and name of each claim, sorted by name, as sha256sum writes them."""
        return "".join(f"{self.claims[name]}  {name}\n" for name in sorted(self.claims))

    @property
    def hash(self) -> str:
        """Hash of the lines."""
        return sha256(self.lines.encode()).hexdigest()


def _batch_of(claim: Wording) -> int:
    """The batch of a claim, -1 for what is none."""
    number = str(claim.get("batch", 1))
    return int(number) if number.isdecimal() else -1


def _registered(claim: Wording) -> Wording:
    """A claim without what may be written afterwards, in today's words for the settings of its runs."""
    return {key: _in_todays_words(value) for key, value in claim.items() if key != _AFTERWARDS}


def _in_todays_words(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_todays_words(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_in_todays_words(inner) for inner in value if inner != "train.kl_estimator=null"]
    return _AXIS.sub(lambda word: _OF_AXES[word[0]], value) if isinstance(value, str) else value


def _by_name(text: str) -> dict[str, Wording]:
    """Claims of a file as plain data; none if it is no file of claims."""
    try:
        return {claim["name"]: dict(claim) for claim in yaml.safe_load(text)["claims"]}
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def minute(date: datetime) -> str:
    """A minute in UTC."""
    return f"{date.astimezone(UTC):%Y-%m-%d %H:%M}"
