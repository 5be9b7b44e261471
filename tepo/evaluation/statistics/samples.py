"""Scores of rows with 95% intervals, and their differences on shared seeds and problems. Formulas and their reasons:
docs/statistics.md.

Data: a pandas DataFrame with a line a problem and the columns row, seed, benchmark, problem, right, samples: how many
of its samples are right. Several lines of one problem are added up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from tepo.common.errors import UserError, unknown_name
from tepo.evaluation.statistics.answer import Question
from tepo.evaluation.statistics.intervals import DRAWS, estimate, estimate_share, in_order
from tepo.evaluation.statistics.region import DIFFERS, Region
from tepo.evaluation.statistics.verdict import FEWEST_SEEDS

AVERAGE = "average"  # over all samples of all benchmarks: the papers' "Avg."
MEAN = "mean"  # over benchmarks, each counting alike
COLUMNS = ("row", "seed", "benchmark", "problem", "right", "samples")


def summarize(frame: pd.DataFrame, *, draws: int = DRAWS) -> pd.DataFrame:
    """Every row on every benchmark, on `average` and on `mean`.

    Columns: row, benchmark, mean, low, high, half (shares in 0..1), seeds, problems, samples. A row that lacks a
    benchmark (or has no seed on all of them) gets no `average` and no `mean`: an average over other samples is another
    number. low, high and half are NaN for fewer than FEWEST problems."""
    check_frame(frame)
    everything = frame["benchmark"].unique().tolist()
    lines = []
    sums = frame.groupby(["row", "benchmark"], observed=True)["samples"].sum().to_dict()
    for row, cells in _cells(frame).items():
        counts = {name: int(sums[row, name]) for name in cells}
        draw_sums: dict[str, np.ndarray] = {}
        scores = [
            (name, estimate_share({name: table.x}, draws=draws, drawn=draw_sums), table.x.shape, counts[name])
            for name, table in cells.items()
        ]
        shared = _shared_seeds(list(cells.values())) if len(cells) == len(everything) else ()
        if shared:
            joint = {name: cells[name].of(shared) for name in everything}
            shape = (len(shared), sum(x.shape[1] for x in joint.values()))
            if len({table.seeds for table in cells.values()}) > 1:  # the average is over fewer
                draw_sums = {}
            weights = {name: counts[name] / len(cells[name].seeds) for name in everything}
            for name, share in ((AVERAGE, weights), (MEAN, None)):
                whole = estimate_share(joint, share, draws=draws, drawn=draw_sums)
                scores.append((name, whole, shape, sum(counts.values())))
        lines += [
            {"row": row, "benchmark": name, "mean": score.mean, "low": score.low, "high": score.high,
             "half": score.half, "seeds": shape[0], "problems": shape[1], "samples": samples}
            for name, score, shape, samples in scores
        ]  # fmt: skip
    return pd.DataFrame(lines)


@dataclass(frozen=True)
class Pair:
    """A row minus the baseline, seed by seed and problem by problem."""

    row: str
    baseline: str
    benchmark: str  # or AVERAGE or MEAN
    cells: dict[str, np.ndarray] | None  # benchmark -> x - base [S, P]; None where seeds or problems are not shared
    weights: dict[str, float] | None  # of the benchmarks, None where all count alike
    seeds: tuple[int, ...] = ()  # those that both have, rising as in the cells

    def question(self, region: Region = DIFFERS, fewest: int = FEWEST_SEEDS) -> Question:
        """By how much the row lies above the baseline, over seeds."""
        named = Question(self.row, self.baseline, self.benchmark, region=region, fewest=fewest)
        if self.cells is None:
            return named
        return replace(named, estimate=estimate(self.cells, self.weights), sample=tuple(self.by_seed()))

    def by_seed(self) -> list[float]:
        """The difference on each seed, weighted as the estimate weights benchmarks; none where nothing is shared."""
        if self.cells is None:
            return []
        names, share = in_order(self.cells, self.weights)
        weighted = [part * self.cells[name].mean(axis=1) for name, part in zip(names, share, strict=True)]
        return [float(value) for value in np.sum(weighted, axis=0)]


def pair_rows(frame: pd.DataFrame, baseline: str, on: Sequence[str] = (AVERAGE,)) -> list[Pair]:
    """Every other row beside `baseline`, row after row. on: benchmarks, AVERAGE or MEAN. Raises UserError for a
    baseline that is not there."""
    return pairs_of(frame, {baseline: on})


def pairs_of(frame: pd.DataFrame, on: Mapping[str, Sequence[str]]) -> list[Pair]:
    """The same beside several baselines. on: of each its benchmarks, AVERAGE or MEAN."""
    check_frame(frame)
    by_row = _cells(frame)
    everything = frame["benchmark"].unique().tolist()
    pairs = []
    for baseline, columns in on.items():
        if baseline not in by_row:
            raise unknown_name("row", baseline, by_row)
        base = by_row[baseline]
        of_base = frame[frame["row"] == baseline].groupby(["benchmark", "seed"], observed=True)["samples"].sum()
        sizes = of_base.groupby("benchmark", observed=True).first()
        for row, cells in by_row.items():
            for column in () if row == baseline else columns:
                names = everything if column in (AVERAGE, MEAN) else [column]
                seeds, differences = tuple[int, ...](), None
                if all(
                    name in cells and name in base and cells[name].problems == base[name].problems for name in names
                ):
                    seeds = _shared_seeds([side[name] for side in (cells, base) for name in names])
                if seeds:
                    differences = {name: cells[name].of(seeds) - base[name].of(seeds) for name in names}
                weights = {name: sizes[name] for name in names} if differences and column == AVERAGE else None
                pairs.append(Pair(row, baseline, column, differences, weights, seeds))
    return pairs


def check_frame(frame: pd.DataFrame) -> None:
    """Raise UserError unless the columns are there, there are rows,
    and every seed of a row has the same problems on a benchmark."""
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise UserError(f"samples lack the column {missing[0]!r}", fix=f"needed: {', '.join(COLUMNS)}")
    if frame.empty:
        raise UserError("there are no samples to summarize", fix="evaluate something first")


class _Shares(NamedTuple):
    """x[s, p]: the share of right samples of each seed on each problem, both rising."""

    seeds: tuple[int, ...]
    problems: tuple[str, ...]
    x: np.ndarray

    def of(self, seeds: Sequence[int]) -> np.ndarray:
        """x of some of the seeds."""
        return self.x[[self.seeds.index(seed) for seed in seeds]]


def _cells(frame: pd.DataFrame) -> dict[str, dict[str, _Shares]]:
    """row -> benchmark -> shares; rows and benchmarks as they appear."""
    keys = ["row", "benchmark", "seed", "problem"]
    counts = frame.groupby(keys, observed=True)[["right", "samples"]].sum().reset_index()
    row, name, seed, problem, right, samples = (counts[key].to_numpy() for key in (*keys, "right", "samples"))
    new = np.flatnonzero((row[1:] != row[:-1]) | (name[1:] != name[:-1])) + 1
    shares = {}
    for start, end in pairwise((0, *new.tolist(), len(counts))):
        seeds = tuple(dict.fromkeys(seed[start:end].tolist()))
        problems = tuple(dict.fromkeys(problem[start:end].tolist()))
        if end - start != len(seeds) * len(problems):
            where, fix = f"row {row[start]}, benchmark {name[start]}", "use the same --limit for every seed"
            raise UserError("the seeds of a row were evaluated on different problems", where=where, fix=fix)
        x = (right[start:end].astype(float) / samples[start:end]).reshape(len(seeds), len(problems))
        shares[row[start], name[start]] = _Shares(seeds, problems, x)
    cells: dict[str, dict[str, _Shares]] = {}
    for label, benchmark in frame[["row", "benchmark"]].drop_duplicates().itertuples(index=False):
        cells.setdefault(label, {})[benchmark] = shares[label, benchmark]
    return cells


def _shared_seeds(tables: Sequence[_Shares]) -> tuple[int, ...]:
    """Seeds that all have, rising."""
    return tuple(sorted(set.intersection(*(set(table.seeds) for table in tables))))
