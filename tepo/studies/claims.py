"""Claims that are written down before they are tested: `experiments/claims.yaml`, the one that ships and, on
`TEPO_PATH`, the user's own beside it (docs/statistics.md has its keys).

A claim is an ordinary study of two rows, at one scale.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.provenance import git
from tepo.common.schema import REQUIRED, Exclusive, Location, derived, option, read
from tepo.common.schema.document import load
from tepo.config.compose import compose, options
from tepo.evaluation.statistics.region import Region
from tepo.studies.study import CLAIMS, Scale, Study, StudyRow, check_seeds, check_words
from tepo.studies.vary import Vary, Words

FEWEST_SEEDS = 8
FEWEST_BASES = 5
BASE = "base"  # the axis of a claim's bases
OWN = f"own-{CLAIMS}"  # what names of batches of the user's own file begin with
Measure = Literal[
    "accuracy", "entropy", "late_entropy", "late_length", "late_best", "realised_kl", "clipped", "steps_to"
]
MEASURES: dict[Measure, tuple[str, str]] = {
    "accuracy": ("points", ""),
    "entropy": ("hundredths of a nat", " of entropy at equal reward"),
    "late_entropy": ("hundredths of a nat", " of entropy in the last quarter of training"),
    "late_length": ("tokens", " a response in the last quarter of training"),
    "late_best": ("points", " of the best response of a group in the last quarter of training"),
    "realised_kl": ("percent", " of realised KL a rollout"),
    "clipped": ("points", " of the share of tokens that a clip holds, of A itself"),
    "steps_to": ("steps", " to the threshold"),
}
"""Unit of a measure, and what it is of, to be put behind the unit; accuracy is on the test problems after training."""


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    label: str = option(REQUIRED, "names it")
    objective: str = option(REQUIRED, "what it trains with")
    overrides: tuple[str, ...] = option((), "its own settings")


@dataclass(frozen=True)
class StatedRegion:
    """Region of A minus B that a claim states: one of the four, in the unit of its measure."""

    at_least: float | None = option(None, "this or more")
    at_most: float | None = option(None, "this or less")
    between: tuple[float, ...] = option((), "from the first to the second")
    outside: tuple[float, ...] = option((), "below the first or above the second")

    def __post_init__(self) -> None:
        keys = [name for name, value in vars(self).items() if value not in (None, ())]
        if len(keys) != 1:
            raise UserError("a region is one of at_least, at_most, between, outside", fix="write {at_least: 2}")
        ends = self.between or self.outside
        if ends and not (len(ends) == 2 and ends[0] < ends[1]):
            raise UserError(f"`{keys[0]}` takes two rising ends", fix=f"write {keys[0]}: [-2, 2]")


@dataclass(frozen=True)
class Claim:
    """A sentence and the comparison that decides it."""

    name: str = option(REQUIRED, "names the claim")
    sentence: str = option(REQUIRED, "what is claimed")
    refuted_by: str = option(REQUIRED, "the outcome that would refute it")
    a: Side = option(REQUIRED, "what the claim is about")
    rule: str = option(REQUIRED, "how the settings were chosen")
    region: StatedRegion = option(REQUIRED, "where A minus B lies by the claim, or A")
    seeds: tuple[int, ...] = option(REQUIRED, f"at least {FEWEST_SEEDS}, used for no choice", low=0)
    problems: int = option(REQUIRED, "seed of newly generated test problems", low=0)
    b: Side | None = option(None, "what it is compared with; of `clipped` nothing")
    settings: tuple[str, ...] = option((), "overrides of both")
    scale: str = option("laptop", "its scale, with the model that this names")
    batch: int = option(1, "the claims of its file that it is registered and judged with", low=1)
    measure: Measure = option("accuracy", "after training on the test problems; the others are of training itself")
    threshold: float | None = option(None, "with steps_to: validation accuracy in percent", low=Exclusive(0), high=100)
    bases: dict[str, Words] = option({}, "name: settings of a base; A and B are compared on average over such bases")
    means: str = option("", "what follows where it holds; it may be written after the runs")
    note: str = option("", "what a reader must know of its sentence; it may be written after the runs")
    by_its_first_rule: Literal["holds", "refuted", "undecided"] | None = option(
        None, "what the rule said that it was registered with, where that is another one; written after the runs"
    )
    file: Path = derived(Path(), "the file that it stands in")
    family: str = derived("", "name of its batch, also of the batch's records")
    in_order: bool = derived(False, "its batch is tested in the order of the file")

    @property
    def unit(self) -> str:
        """Unit of the difference and of its region."""
        return MEASURES[self.measure][0]

    @property
    def tested(self) -> Region:
        """The stated region in hundreds of its unit, so in shares or nats."""
        stated = self.region
        low, high = stated.between or stated.outside or (stated.at_least, stated.at_most)
        ends = (-math.inf if low is None else low / 100), (math.inf if high is None else high / 100)
        return Region(*ends, outside=bool(stated.outside))


@dataclass(frozen=True)
class Claims:
    """Checked claims."""

    claims: tuple[Claim, ...] = option(REQUIRED, "the claims; those of a batch are one family")
    batches: dict[str, Literal["Holm", "fixed order"]] = option(
        {}, "batch: how its claims are tested; Holm if not given"
    )


def claim_files() -> dict[str, Path]:
    """The file that ships and, where there is one, the user's own, by what the names of their batches begin with."""
    shipped, first = paths.shipped("experiments") / f"{CLAIMS}.yaml", paths.find("experiments", CLAIMS)
    return {CLAIMS: shipped} | ({} if first.samefile(shipped) else {OWN: first})


def load_claims(scale: str | None = None, files: Collection[str] = (CLAIMS, OWN)) -> Claims:
    """The claims that ship and the user's own; with a scale those registered at it. files: keys of `claim_files`; no
    other file is read, so that a draft stops nothing but what wants its claims. Raises UserError naming file, line and
    key."""
    claims: tuple[Claim, ...] = ()
    for prefix, path in claim_files().items():
        if prefix in files:
            other_names = () if prefix == CLAIMS else written_names(claim_files()[CLAIMS])
            claims += read_claims(path, prefix, other_names).claims
    return Claims(tuple(claim for claim in claims if scale in (None, claim.scale)))


def file_of(batch: str) -> str:
    """The key in `claim_files` of the file that a batch of claims stands in; of another name, one that is not there."""
    return batch.rpartition("-")[0]


def written_names(path: Path) -> set[str]:
    """What a file calls its claims, whether they are right or not; nothing where it cannot be read."""
    with suppress(UserError):
        claims = load(path).data.get("claims")
        if isinstance(claims, list):
            return {str(claim.get("name")) for claim in claims if isinstance(claim, Mapping)}
    return set()


def read_claims(path: Path, prefix: str = CLAIMS, taken: Collection[str] = ()) -> Claims:
    """The checked claims of a file. prefix: of the names of its batches. taken: names of other claims. Raises UserError
    naming file, line and key."""
    document = load(path)
    at = document.at
    claims = read(Claims, document.data, at)
    names, batches = [claim.name for claim in claims.claims], {str(claim.batch) for claim in claims.claims}
    for batch in claims.batches:
        if batch not in batches:
            raise at.at("batches", batch).unknown("batch", batch, batches)
    for number, claim in enumerate(claims.claims):
        here = at.at("claims", number)
        if claim.name in (*taken, *names[:number]):
            raise here.at("name").error(f"two claims are named {claim.name!r}", fix="rename the one in this file")
        _check(claim, here)

    def placed(claim: Claim) -> Claim:
        in_order = claims.batches.get(str(claim.batch)) == "fixed order"
        return replace(claim, file=path, family=f"{prefix}-{claim.batch}", in_order=in_order)

    return replace(claims, claims=tuple(map(placed, claims.claims)))


def _check(claim: Claim, here: Location) -> None:
    """Raise UserError for settings that do not go together, and for too few seeds."""
    if (claim.measure == "steps_to") != (claim.threshold is not None):
        fix = "name the accuracy to reach with `threshold:`, in percent, for `measure: steps_to` alone"
        raise here.at("measure").error("`steps_to` and `threshold` belong together", fix=fix)
    if claim.threshold is not None and not any(word.startswith("train.validate_every=") for word in claim.settings):
        what = "steps to a threshold are told by validations, and the claim has none"
        raise here.at("settings").error(what, fix="add train.validate_every=6")
    with here.at("seeds").named():
        check_seeds(claim.seeds)
    if claim.bases:
        if len(claim.bases) < FEWEST_BASES:
            what = f"fewer than {FEWEST_BASES} bases say little about others"
            raise here.at("bases").error(what, fix="tepo model warmstart laptop --seed 6 makes another")
        if len(claim.seeds) < 2:
            raise here.at("seeds").error("one seed does not tell a base from its luck", fix="name two or more")
        for name, words in claim.bases.items():
            check_words(words, here.at("bases", name))
    elif len(claim.seeds) < FEWEST_SEEDS:
        raise here.at("seeds").error(f"fewer than {FEWEST_SEEDS} seeds can hardly decide a claim", fix="name more")
    if (claim.b is None) != (claim.measure == "clipped"):
        raise here.at("measure").error(
            "`clipped` is of A alone", fix="name `b:` for any other measure, and for no `clipped`"
        )
    if claim.scale not in options("scale"):
        raise here.at("scale").unknown("scale", claim.scale, options("scale"))
    for key, side in (("a", claim.a), ("b", claim.b)):
        if side is None:
            continue
        if side.objective not in options("objective"):
            raise here.at(key, "objective").unknown("objective", side.objective, options("objective"))
        check_words(side.overrides, here.at(key, "overrides"))
    check_words(claim.settings, here.at("settings"))


def study_of(claim: Claim) -> Study:
    """The study of two rows that decides a claim, of one row where it has no B: B is the baseline, the benchmarks are
    those of its data with newly generated problems."""
    config = compose((f"scale={claim.scale}", *claim.settings))
    fresh = ",".join(f"{name}:problems{claim.problems}" for name in config.data.benchmarks)
    sides = (claim.b, claim.a) if claim.b else (claim.a,)
    rows = tuple(StudyRow(f"{claim.name}: {side.label}", side.objective, overrides=side.overrides) for side in sides)
    words = (*claim.settings, f"data.benchmarks=[{fresh}]")
    scales = {claim.scale: Scale((config.model.name,), claim.seeds, words, drawn=BASE if claim.bases else "")}
    vary: Vary = {BASE: dict(claim.bases)} if claim.bases else {}
    return Study(
        claim.sentence, baseline=rows[0].label, rows=rows, scales=scales, vary=vary, name=claim.name, batch=claim.family
    )


def check_registered(claim: Claim, run: str, sessions: Iterable[Mapping[str, Any]]) -> None:
    """Raise UserError unless each process that trained a run began at a commit that holds the claim as it reads today:
    its own entry but for `AFTERWARDS`, the names in its batch and how that is tested, as they decide with it.

    That is the commit of the code. A file of the user's own lies in another repository: there it is the one that was
    the last when the process began."""
    folder, now = claim.file.parent, _wording(claim, yaml.safe_load(claim.file.read_text(encoding="utf-8")))
    for session in [session for session in sessions if session.get("what") == "train"] or [{}]:
        commit, started = session.get("commit"), session.get("started")
        if claim.family.startswith(OWN):
            commit = ((started and git(folder, "rev-list", "-1", f"--before={started}", "HEAD")) or "").strip()
        if session.get("dirty"):
            why = "was made by code that differs from its commit"
        elif not commit:
            why = "is of no commit that is known"
        elif _wording(claim, _committed(folder, claim.file.name, commit)) != now:
            why = f"began at commit {commit[:8]}, which does not hold the claim and its batch as they read today"
        else:
            continue
        fix = "commit the claim, then run it in another store: a claim is registered by a commit before its runs"
        raise UserError(f"a run of the claim {claim.name} {why}", where=f"run {run}, {claim.file}", fix=fix)


AFTERWARDS = ("means", "note", "by_its_first_rule", "known")  # may change after the runs; `known` was one once


def _wording(claim: Claim, document: Any) -> Any:
    """Words that must not change after the runs; None where the document does not hold the claim."""
    try:
        batch = [entry for entry in document["claims"] if str(entry.get("batch", 1)) == str(claim.batch)]
        (own_entry,) = [entry for entry in batch if entry["name"] == claim.name]
        how = {str(key): value for key, value in document.get("batches", {}).items()}.get(str(claim.batch))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return {key: own_entry[key] for key in own_entry if key not in AFTERWARDS}, [entry["name"] for entry in batch], how


@cache
def _committed(folder: Path, name: str, commit: str) -> Any:
    try:
        return yaml.safe_load(git(folder, "show", f"{commit}:./{name}") or "")
    except yaml.YAMLError:
        return None
