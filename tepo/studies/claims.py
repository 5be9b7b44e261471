"""Claims that are written down before they are tested: `experiments/claims.yaml`.

    claims:
      - name: active_clip
        sentence: what is claimed
        a: {label: tight bounds, objective: tepo_no_kl, overrides: [objective.surrogate.low=3e-3]}
        b: {label: the paper's bounds, objective: tepo_no_kl}
        settings: [train.learning_rate=4e-4]      # of both, over those of the laptop scale
        rule: how the settings were chosen
        expect: [better]                         # A against B: better, worse, equivalent; one of several
        measure: accuracy                        # or entropy: at equal reward while training, nats a token
        margin: 2                                # points, or hundredths of a nat: what matters, and what is the same
        seeds: [100, 101, 102, 103, 104, 105, 106, 107]
        problems: 7101                           # seed of newly generated test problems
        refuted_by: the outcome that would refute it
      - {name: later, sentence: …, refuted_by: …, needs: what is missing to run it}

A claim is an ordinary study of two rows.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tepo.common import paths
from tepo.common.schema import REQUIRED, Exclusive, derived, option, read
from tepo.common.schema.document import load
from tepo.config.compose import compose, options
from tepo.evaluation.statistics.comparison_verdict import Verdict
from tepo.studies.study import CLAIMS, Row, Scale, Study, check_seeds, check_words

FEWEST_SEEDS = 8
SCALE = "laptop"
_EXAMPLE = "see experiments/claims.yaml"
Expected = Literal["better", "worse", "equivalent"]
Measure = Literal["accuracy", "entropy"]


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    label: str = option(REQUIRED, "names it")
    objective: str = option(REQUIRED, "what it trains with")
    overrides: tuple[str, ...] = option((), "its own settings")


@dataclass(frozen=True)
class Claim:
    """A sentence and the comparison that decides it; `needs`: why it cannot be run yet, then it has no comparison."""

    name: str = option(REQUIRED, "names the claim")
    sentence: str = option(REQUIRED, "what is claimed")
    refuted_by: str = option(REQUIRED, "the outcome that would refute it")
    a: Side | None = option(None, "what the claim is about")
    b: Side | None = option(None, "what it is compared with")
    settings: tuple[str, ...] = option((), "overrides of both")
    rule: str = option("", "how the settings were chosen")
    expect: tuple[Expected, ...] = option((), "outcomes of A against B that the claim says, any of them")
    measure: Measure = option("accuracy", "after training on the test problems; or entropy at equal reward in training")
    margin: float | None = option(None, "points, or hundredths of a nat: what matters", low=Exclusive(0))
    seeds: tuple[int, ...] = option((), f"at least {FEWEST_SEEDS}, used for no choice", low=0)
    problems: int | None = option(None, "seed of newly generated test problems", low=0)
    needs: str = option("", "what is missing to run it")
    means: str = option("", "what follows where it holds; it may be written after the runs")

    @property
    def unit(self) -> str:
        """Unit of the difference and of its margin."""
        return "points" if self.measure == "accuracy" else "hundredths of a nat"

    def outcome(self, verdict: Verdict) -> str:
        """Words for the claim where A against B came out so."""
        if verdict in (Verdict.UNDECIDED, Verdict.NOT_COMPARABLE):
            return str(verdict)
        return "holds" if verdict in self.expect else "refuted"


@dataclass(frozen=True)
class Claims:
    """A checked file of claims."""

    claims: tuple[Claim, ...] = option(REQUIRED, "the claims, one family")
    path: Path = derived(Path(), "the file")

    @property
    def testable(self) -> list[Claim]:
        """Claims that have a comparison: the family."""
        return [claim for claim in self.claims if not claim.needs]


def load_claims(path: Path | None = None) -> Claims:
    """The checked claims of a file; without one of the user's folder, else those that ship. Raises UserError naming
    file, line and key."""
    path = path or paths.find("experiments", CLAIMS)
    document = load(path)
    at = document.at
    claims = replace(read(Claims, document.data, at), path=path)
    for number, claim in enumerate(claims.claims):
        here = at.at("claims", number)
        if claim.name in (other.name for other in claims.claims[:number]):
            raise here.at("name").error(f"two claims are named {claim.name!r}", fix="rename one")
        wanted = ("a", "b", "rule", "expect", "margin", "seeds", "problems")
        given = [key for key in wanted if getattr(claim, key) not in (None, "", ())]
        if claim.needs:
            if given:
                fix = "leave one of them out"
                raise here.at(given[0]).error("a claim that `needs:` something is not run yet", fix=fix)
            continue
        for key in wanted:
            if key not in given:
                raise here.error(f"the claim lacks `{key}:`", fix=f"{_EXAMPLE}, or say what it `needs:`")
        with here.at("seeds").named():
            check_seeds(list(claim.seeds))
        if len(claim.seeds) < FEWEST_SEEDS:
            raise here.at("seeds").error(f"fewer than {FEWEST_SEEDS} seeds decide little", fix="name more fresh ones")
        for key in ("a", "b"):
            side = getattr(claim, key)
            if side.objective not in options("objective"):
                raise here.at(key, "objective").unknown("objective", side.objective, options("objective"))
            check_words(side.overrides, here.at(key, "overrides"))
        check_words(claim.settings, here.at("settings"))
    return claims


def study_of(claim: Claim) -> Study:
    """The study of two rows that decides a claim: B is the baseline, the benchmarks are those of its data with newly
    generated problems."""
    assert claim.a
    assert claim.b
    config = compose((f"scale={SCALE}", "model=laptop", *claim.settings))
    fresh = ",".join(f"{name}:problems{claim.problems}" for name in config.data.benchmarks)
    sides = (claim.b, claim.a)
    rows = tuple(Row(f"{claim.name}: {side.label}", side.objective, overrides=side.overrides) for side in sides)
    words = (*claim.settings, f"data.benchmarks=[{fresh}]")
    scales = {SCALE: Scale(("laptop",), claim.seeds, words)}
    return Study(claim.sentence, baseline=rows[0].label, rows=rows, scales=scales, name=claim.name, registered=True)
