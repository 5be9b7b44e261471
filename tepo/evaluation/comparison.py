"""Scores of rows with 95% intervals, and paired comparisons between rows.
Formulas and their reasons: docs/evaluation.md.

Data: a pandas DataFrame with a line a sample and the columns row, seed, benchmark, problem, sample, correct.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tepo.errors import UserError, unknown_name
from tepo.evaluation.intervals import DRAWS, LEVEL, Estimate, estimate, estimate_share

AVERAGE = "average"  # over all samples of all benchmarks: the papers' "Avg." (objectives.md section 0)
MEAN = "mean"  # over benchmarks, each counting alike
COLUMNS = ("row", "seed", "benchmark", "problem", "sample", "correct")


def summarize(frame: pd.DataFrame, *, draws: int = DRAWS, seed: int = 0) -> pd.DataFrame:
    """Every row on every benchmark, on `average` and on `mean`.

    Columns: row, benchmark, mean, low, high, half (shares in 0..1), seeds, problems, samples. A row that lacks a
    benchmark (or has no seed on all of them) gets no `average` and no `mean`: an average over other samples is another
    number. low, high and half are NaN for fewer than FEWEST problems.
    """
    check_frame(frame)
    everything = frame["benchmark"].unique().tolist()
    lines = []
    for row, cells in _cells(frame).items():
        counts = frame[frame["row"] == row].groupby("benchmark").size()
        for name, table in cells.items():
            lines.append(
                _line(
                    row,
                    name,
                    estimate_share({name: table.to_numpy()}, draws=draws, seed=seed),
                    table.shape,
                    counts[name],
                )
            )
        joint = _joint(cells, everything)
        if joint:
            shape = (len(next(iter(joint.values()))), sum(x.shape[1] for x in joint.values()))
            weights = {name: counts[name] / len(cells[name]) for name in everything}
            lines.append(
                _line(row, AVERAGE, estimate_share(joint, weights, draws=draws, seed=seed), shape, counts.sum())
            )
            lines.append(_line(row, MEAN, estimate_share(joint, draws=draws, seed=seed), shape, counts.sum()))
    return pd.DataFrame(lines)


def compare(
    frame: pd.DataFrame, baseline: str, on: Sequence[str] = (AVERAGE,), *, draws: int = DRAWS, seed: int = 0
) -> pd.DataFrame:
    """Every other row against `baseline`, paired on seeds and problems.

    on: benchmarks, AVERAGE or MEAN. Columns: row, benchmark, delta, low, high, half, p, p_holm (Holm over everything
    returned), seeds, verdict (`better` or `worse` where p_holm < 0.05, else `within noise`; `not comparable` where
    seeds or problems are not shared or too few).
    """
    check_frame(frame)
    by_row = _cells(frame)
    if baseline not in by_row:
        raise unknown_name("row", baseline, by_row)
    everything = frame["benchmark"].unique().tolist()
    sizes = frame[frame["row"] == baseline].groupby(["benchmark", "seed"]).size().groupby("benchmark").first()
    lines = []
    for row, cells in by_row.items():
        for column in () if row == baseline else on:
            wanted = everything if column in (AVERAGE, MEAN) else [column]
            paired = _paired(cells, by_row[baseline], wanted)
            line: dict[str, object] = {
                "row": row,
                "benchmark": column,
                "delta": np.nan,
                "low": np.nan,
                "high": np.nan,
                "half": np.nan,
                "p": np.nan,
                "seeds": 0,
            }
            if paired:
                found = estimate(
                    paired,
                    {name: sizes[name] for name in wanted} if column == AVERAGE else None,
                    draws=draws,
                    seed=seed,
                )
                line |= {
                    "delta": found.mean,
                    "low": found.low,
                    "high": found.high,
                    "half": found.half,
                    "p": found.p,
                    "seeds": len(paired[wanted[0]]),
                }
            lines.append(line)
    table = pd.DataFrame(lines, columns=["row", "benchmark", "delta", "low", "high", "half", "p", "seeds"])
    table.insert(7, "p_holm", holm(table["p"].to_numpy(float)))
    table["verdict"] = [verdict(delta, p) for delta, p in zip(table["delta"], table["p_holm"], strict=True)]
    return table


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's step-down adjusted p-values [n]; NaN stays NaN and does not count. Holm 1979."""
    adjusted = np.full(len(p), np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    factors = len(order) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted


def check_frame(frame: pd.DataFrame) -> None:
    """Raise UserError unless the columns are there, there are rows,
    and every seed of a row has the same problems on a benchmark."""
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        raise UserError(f"samples lack the column {missing[0]!r}", fix=f"needed: {', '.join(COLUMNS)}")
    if frame.empty:
        raise UserError("there are no samples to summarize", fix="evaluate something first")


def _cells(frame: pd.DataFrame) -> dict[str, dict[str, pd.DataFrame]]:
    """row -> benchmark -> x[s, p] with labelled seeds and problems, sorted; rows and benchmarks as they appear."""
    means = frame.groupby(["row", "benchmark", "seed", "problem"], observed=True)["correct"].mean().reset_index()
    parts = dict(iter(means.groupby(["row", "benchmark"], sort=False)))
    cells: dict[str, dict[str, pd.DataFrame]] = {}
    for row, name in frame[["row", "benchmark"]].drop_duplicates().itertuples(index=False):
        part = parts[row, name]
        seeds, problems = pd.Index(part["seed"].unique()), pd.Index(part["problem"].unique())
        if len(part) != len(seeds) * len(problems):
            raise UserError(
                "the seeds of a row were evaluated on different problems",
                where=f"row {row}, benchmark {name}",
                fix="use the same --limit for every seed",
            )
        cells.setdefault(row, {})[name] = pd.DataFrame(
            part["correct"].to_numpy(float).reshape(len(seeds), len(problems)), seeds, problems
        )
    return cells


def _joint(cells: Mapping[str, pd.DataFrame], wanted: Sequence[str]) -> dict[str, np.ndarray] | None:
    """x[s, p] of all wanted benchmarks over the seeds that have all of them, or None."""
    if any(name not in cells for name in wanted):
        return None
    shared = functools.reduce(lambda left, right: left.intersection(right), (cells[name].index for name in wanted))
    return {name: cells[name].loc[shared].to_numpy() for name in wanted} if len(shared) else None


def _paired(
    cells: Mapping[str, pd.DataFrame], base: Mapping[str, pd.DataFrame], wanted: Sequence[str]
) -> dict[str, np.ndarray] | None:
    """Differences x[s, p] - base[s, p] over the seeds both have everywhere,
    or None when seeds or problems are not shared."""
    if any(
        name not in cells or name not in base or not cells[name].columns.equals(base[name].columns) for name in wanted
    ):
        return None
    return _joint({name: (cells[name] - base[name]).dropna() for name in wanted}, wanted)


def _line(row: str, name: str, found: Estimate, shape: tuple[int, ...], samples: int) -> dict[str, object]:
    return {
        "row": row, "benchmark": name, "mean": found.mean, "low": found.low, "high": found.high, "half": found.half,
        "seeds": shape[0], "problems": shape[1], "samples": int(samples),
    }  # fmt: skip


def verdict(delta: float, p: float) -> str:
    """Words for a difference: `better` or `worse` only where its corrected p is below 5%; NaN is `not comparable`."""
    if np.isnan(p):
        return "not comparable"
    return "within noise" if p >= 1 - LEVEL else "better" if delta > 0 else "worse"
