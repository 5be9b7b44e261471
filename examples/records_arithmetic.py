"""What the documents say of the records beyond what `tepo table` prints. Describes, and decides nothing.

Run: python examples/records_arithmetic.py
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom, t

from tepo.analysis.claim_outcomes import judge_claims
from tepo.evaluation.statistics.intervals import Estimate, satterthwaite
from tepo.evaluation.statistics.region import Region
from tepo.evaluation.statistics.verdict import DeltaVerdict, holm
from tepo.studies.claims import load_claims
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.study import CLAIMS

RECORDS = Path(__file__).parents[1] / "records"
SEEDS = [0, 1, 2, 300, 301, 302, 303]  # under which both TEPO and GRPO/DAPO were trained on SmolLM2-135M
LATE = 27  # of 36 steps: after it comes the last quarter


def read(part: str, *folders: str) -> pd.DataFrame:
    """A frame of some records, with label (without a claim's name) and seed of each run."""
    frames = []
    for folder in folders:
        runs = pd.read_parquet(RECORDS / folder / "runs.parquet")[["run", "label", "seed"]].drop_duplicates("run")
        frames.append(pd.read_parquet(RECORDS / folder / f"{part}.parquet").merge(runs, on="run"))
    every = pd.concat(frames)
    return every.assign(label=every["label"].str.replace(r"^language_\w+: ", "", regex=True))


def by_seed(curves: pd.DataFrame, a: str, b: str, metric: str) -> "pd.Series[float]":
    """A minus B on each seed that both have, of the mean over the steps."""
    means = curves.groupby(["label", "seed"])[metric].mean()
    return (means[a] - means[b]).dropna()


def in_words(mean: float, low: float, high: float) -> str:
    ends = [f"{round(value, 1) + 0.0:.1f}".replace("-", "−") for value in (mean, low, high)]
    return f"{'+' if round(mean, 1) > 0 else ''}{ends[0]} [{ends[1]}, {ends[2]}]"


def over_seeds(differences: "pd.Series[float]") -> str:
    """The mean with its 95% interval, by Student's t of the seeds."""
    half = t.ppf(0.975, len(differences) - 1) * differences.std() / len(differences) ** 0.5
    return in_words(differences.mean(), differences.mean() - half, differences.mean() + half)


def accuracy(scores: pd.DataFrame, a: str, b: str, names: str) -> str:
    """Points that A is above B on benchmarks whose names match, by the formula of docs/statistics.md. Seeds under 300
    have other problems than those from 300 on: the variance by problems is that of both sets, by their seeds."""
    kept = scores[scores["benchmark"].str.match(names)]
    kept = kept.assign(share=100 * kept["right"] / kept["samples"])
    share = kept.set_index(["label", "seed", "benchmark", "problem"])["share"]
    by_problem = (share[a] - share[b]).dropna()
    seeds = by_problem.groupby("seed").mean()
    sets = [part.groupby("problem").mean() for _, part in by_problem.groupby("benchmark")]
    weights = [len(part) / len(by_problem) for _, part in by_problem.groupby("benchmark")]
    variances = np.array([w**2 * one.var() / len(one) for w, one in zip(weights, sets, strict=True)])
    freedom = satterthwaite(variances, np.array([len(one) - 1 for one in sets]))
    of_seeds = seeds.var() / len(seeds)
    made = Estimate.of_variances(seeds.mean(), of_seeds, len(seeds) - 1, variances.sum(), float(freedom))
    return in_words(made.mean, made.low, made.high)


def language_model() -> None:
    """TEPO beside GRPO/DAPO at the same rate, and what clips at the wide bounds."""
    tepo, base, plain = "TEPO", "GRPO/DAPO", "TEPO-w/o. KL"
    scores, curves = (read(part, "language_model", "claims-6") for part in ("scores", "curves"))
    both = [frame[frame["seed"].isin(SEEDS) & frame["label"].isin([tepo, base])] for frame in (scores, curves)]
    early, late = both[1][both[1]["step"] <= 9], both[1][both[1]["step"] > LATE]
    print(f"SmolLM2-135M, TEPO above GRPO/DAPO, seeds {', '.join(map(str, SEEDS))}:")
    for name, words in (("four benchmarks", ""), ("without words3", "(?!words3)"), ("words3", "words3")):
        print(f"  accuracy, {name}: {accuracy(both[0], tepo, base, words)} points")
    print(f"  reward of steps 1 to 9: {over_seeds(100 * by_seed(early, tepo, base, 'critic/score/mean'))} points")
    print(f"  best of 8, last quarter: {over_seeds(100 * by_seed(late, tepo, base, 'critic/score/best@8'))} points")
    entropy = 100 * by_seed(late, tepo, base, "actor/entropy")
    print(f"  entropy, last quarter: {over_seeds(entropy)} hundredths of a nat")
    kl = both[1].groupby(["label", "seed"])["actor/realised_kl_k3"].mean()
    ratio = kl[tepo] / kl[base]
    print(f"  realised KL: {ratio.min():.1f} to {ratio.max():.1f} times as much, {ratio.median():.1f} in the median")
    start = both[1].loc[both[1]["step"] == 1, "actor/entropy"].mean()
    print(f"  entropy of the first rollout, both: {start:.3f} nats a token")
    three = read("scores", "language_model")
    print("Above TEPO without KL, seeds 0, 1, 2:")
    for label in (tepo, "TEPO-w. KL(A<0 ∧ ΔH>0)", "TEPO-w. KL(A>0 ∧ ΔH<0) ∨ (A<0 ∧ ΔH>0)"):
        print(f"  {label}: {accuracy(three, label, plain, '')} points")
    clipped = curves.groupby(["label", "step"])["actor/pg_clipfrac"].mean() * 100
    wide = clipped["TEPO-w/o. KL, bounds 0.2 and 0.28, at 2e-5"]
    ends = f"{wide[1]:.1f}% in the first step, {wide[wide.index > LATE].mean():.1f}% in the last quarter"
    print(f"Tokens that a clip holds, bounds 0.2 and 0.28 at 2e-5: {ends};")
    print(f"  at 5e-6 {clipped[plain].mean():.3f}%; GSPO at 5e-6 {clipped['GSPO'].mean():.0f}%")


def laptop() -> None:
    """Early rewards of TEPO, and the Entropy-based Term where it is the highest of the study `stability`."""
    curves = read("curves", "claims-1")
    early = curves[curves["step"] <= 9]
    gap = 100 * by_seed(early, "mask_and_entropy: TEPO, β = 1", "kl_cov: GRPO/DAPO", "critic/score/mean")
    print(f"Laptop, TEPO above GRPO/DAPO, reward of steps 1 to 9: {over_seeds(gap)} points over {len(gap)} seeds")
    scores = read("scores", "stability")
    for rate in ("1e-4", "4e-4"):
        a, b = (f"{label}, learning_rate={rate}" for label in ("Entropy-based Term", "GRPO/DAPO"))
        print(f"  Entropy-based Term above GRPO/DAPO at {rate}: {accuracy(scores, a, b, '')} points")


def sign_p(differences: Sequence[float], region: Region) -> tuple[float, float]:
    """p of "the median is not in the region" and of "it is", by an exact sign test against each end."""
    gaps = np.asarray(differences)
    above, below = (
        [float(binom.sf((side * (gaps - end) > 0).sum() - 1, len(gaps), 0.5)) for end in (region.low, region.high)]
        for side in (1, -1)
    )
    pair = max(above[0], below[1]), min(1.0, (1 if region.one_sided else 2) * min(below[0], above[1]))
    return pair[::-1] if region.outside else pair


def sign_tests() -> None:
    """The claims at laptop scale once more by a test that assumes nothing on the luck of training."""
    with tempfile.TemporaryDirectory() as store:
        planned, facts = read_facts(plan_all([CLAIMS], "laptop", store=Path(store)), records=True)
        judged = judge_claims(load_claims("laptop"), {study.name: units for study, units in planned}, facts)
    families: dict[str, list[tuple[float, float]]] = {}
    decided = [one for one in judged if one.verdict in (DeltaVerdict.HOLDS, DeltaVerdict.REFUTED)]
    for one in judged:
        families.setdefault(one.claim.family, []).append(sign_p(one.answer.question.sample, one.claim.tested))
    alone = sum(min(pair) < 0.05 for pairs in families.values() for pair in pairs)
    columns = [np.transpose(pairs) for pairs in families.values()]
    corrected = [p for pair in columns for p in np.minimum(*map(holm, pair)) if p < 0.05]
    print(f"Of {len(judged)} laptop claims {len(decided)} are decided. An exact sign test over seeds or bases decides")
    print(f"  {alone} by themselves, and {len(corrected)} with Holm's correction over their batch.")


if __name__ == "__main__":
    laptop()
    language_model()
    sign_tests()
