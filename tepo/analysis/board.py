"""The board: every method under one protocol, ranked by what can be told apart; and a stranger's records tried again.

A method's rank is one more than the number of methods that are shown to end above it, so methods that cannot be told
apart from any better one share a rank. The protocol fixes the problems: what is asked is where other seeds would end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.special import stdtr, stdtrit

from tepo.analysis.tables import read_samples
from tepo.common.errors import UserError
from tepo.common.grouping import grouped
from tepo.evaluation.statistics.intervals import LEVEL
from tepo.evaluation.statistics.samples import AVERAGE
from tepo.evaluation.statistics.verdict import holm
from tepo.formula.row import load_row
from tepo.reporting.tables.table import Cell, Column, Kind, Table, TableBlock, TableRow
from tepo.store.facts import Facts
from tepo.studies.plan import Unit, row_key
from tepo.studies.plan_studies import Planned
from tepo.studies.study import SCALES, USUAL, Scale, Study, parse_study
from tepo.studies.vary import key_of

STUDY = "objectives"  # the study whose scale is the protocol and whose rows are the methods
SEEDS = range(8)  # of the methods that ship
FEWEST = 3  # seeds of a method that is ranked or can be checked
DRAWS = 20_000
_COLUMNS = (Column("rank", "Rank", Kind.TEXT), Column(AVERAGE, "Avg."), Column("seeds", "Seeds", Kind.TEXT))


def board_table(planned: Planned, facts: Facts) -> Table:
    """The methods by rank and average, all of one protocol. planned: the board's study, and those of further rows."""
    units = [unit for _, part in planned for unit in part if unit.trains]
    known = grouped((row, value) for (row, _), value in averages(units, facts).items())
    runs = {row: values for row, values in known.items() if len(values) >= FEWEST}
    above, halves = ranking(runs)
    first = {row_key(unit): unit for unit in reversed(units)}
    rows = []
    for row in sorted(runs, key=lambda row: (above[row], -float(np.mean(runs[row])))):
        mean, unit = float(np.mean(runs[row])), first[row]
        score = Cell(mean, mean - halves[row], mean + halves[row])
        cells = (Cell(text=str(1 + above[row])), score, Cell(text=str(len(runs[row]))))
        rows.append(TableRow(row, unit.row_label, cells, unit.row.objective or "", unit.row.look))
    config = units[0].config
    train = config.train
    notes = [
        f"Protocol: {config.scale} scale, data {config.data.name}, base {config.model.name}, {train.steps} steps of "
        f"{train.prompts_per_step} prompts with {train.samples_per_prompt} responses, learning rate "
        f"{train.learning_rate:g}, the last weights on {len(config.data.benchmarks)} benchmarks; each method as it is "
        "shipped. Nothing is tuned, so a method that wants other settings stands lower than it could.",
        "Rank: one more than the number of methods that are shown to end above it under other seeds, on these "
        f"problems: t tests of run averages with Holm's correction over all {math.comb(len(runs), 2)} pairs, each with "
        "the larger of a method's own variance and that of all methods pooled. Methods of one rank are not shown to be "
        "equal.",
        "± = half of the 95% interval over seeds, from the same variance.",
    ]
    if missing := [unit.row_label for row, unit in reversed(first.items()) if row not in runs]:
        notes.append(f"Fewer than {FEWEST} seeds measured: {', '.join(missing)}.")
    return Table("board", "The board", (TableBlock("Methods", _COLUMNS, tuple(rows)),), tuple(notes))


def ranking(runs: Mapping[str, Sequence[float]]) -> tuple[dict[str, int], dict[str, float]]:
    """For each method how many others are shown to end above it, and half of its 95% interval. runs: averages of its
    runs, FEWEST or more. A few seeds underestimate a variance as often as not, so none counts as less than the pooled
    one; where it is more, it has its own few degrees of freedom."""
    freedom = sum(len(values) - 1 for values in runs.values())
    pooled = sum(float(np.var(values)) * len(values) for values in runs.values()) / max(freedom, 1)
    errors, halves = {}, {}
    for row, values in runs.items():
        own = float(np.var(values, ddof=1))
        errors[row] = max(own, pooled) / len(values), len(values) - 1 if own > pooled else freedom
        halves[row] = float(stdtrit(errors[row][1], (1 + LEVEL) / 2)) * errors[row][0] ** 0.5
    pairs, p_values = list(combinations(runs, 2)), []
    for a, b in pairs:
        (u, m), (v, n) = errors[a], errors[b]
        df = (u + v) ** 2 / (u**2 / m + v**2 / n) if u + v else 1.0  # Satterthwaite
        t = abs(float(np.mean(runs[a]) - np.mean(runs[b]))) / (u + v) ** 0.5 if u + v else 0.0
        p_values.append(2 * float(stdtr(df, -t)))
    above = dict.fromkeys(runs, 0)
    for (a, b), p in zip(pairs, holm(np.array(p_values)), strict=True):
        if p < 1 - LEVEL:
            above[a if np.mean(runs[a]) < np.mean(runs[b]) else b] += 1
    return above, halves


def submission(path: Path) -> Study:
    """The study of somebody's method for the board: rows with formulas of its own folder, at the board's protocol.
    Nothing of it is executed but formulas. Raises UserError for whatever else it asks for."""
    study = parse_study(path)
    root, where = path.resolve().parents[1], str(path)
    protocol = Scale((USUAL,), study.scale(USUAL).seeds if USUAL in study.scales else ())
    if study.panels or study.vary or study.tune or study.scales != {USUAL: protocol}:
        fix = f"scales: {{{USUAL}: {{models: [{USUAL}], seeds: [0, 1, 2, 3, 4, 5, 6, 7]}}}}"
        raise UserError("the board has one protocol, and this study sets more than its seeds", where=where, fix=fix)
    for row in study.rows:
        here = f"{where}, row {row.label!r}"
        words = [word for part in ("overrides", *SCALES) for word in getattr(row, part)]
        words += [word for part in row.by_model.values() for word in part]
        for word in words:
            if not key_of(word).startswith("objective.") or key_of(word) == "objective.functions":
                fix = "objective.NAME=… of its formula alone"
                raise UserError(f"a row of the board sets its method and nothing else: {word}", where=here, fix=fix)
        if row.objective is None:
            continue
        own_file = Path(row.objective)
        if own_file.suffix and not own_file.resolve().is_relative_to(root):
            raise UserError(f"the method lies outside of {root}: {own_file}", where=here, fix="put it into the folder")
        if functions := load_row(row.objective).functions:
            what = f"the method has functions in Python, which are not executed: {', '.join(functions)}"
            raise UserError(what, where=here, fix="write it as a formula")
    return study


@dataclass(frozen=True)
class Tried:
    """A recorded run and the same run here: percent right over all benchmarks, and the interval that holds the second
    by the other recorded seeds of its row."""

    unit: Unit
    recorded: float
    again: float
    low: float
    high: float

    @property
    def fits(self) -> bool:
        return self.low <= self.again <= self.high


def averages(units: Sequence[Unit], facts: Facts) -> dict[tuple[str, int], float]:
    """Percent of right responses over all benchmarks, by row and seed."""
    sums = read_samples(units, facts).groupby(["row", "seed"], observed=True)[["right", "samples"]].sum()
    return {(str(row), int(seed)): 100 * right / samples for (row, seed), right, samples in sums.itertuples()}


def predicted(recorded: Sequence[float], tries: int) -> tuple[float, float]:
    """Ends of the interval that holds each of `tries` further runs at once in 95% of cases, if they are of the kind of
    the recorded ones: Student's t at 5% / tries, times SD √(1 + 1/n)."""
    mean, reach = float(np.mean(recorded)), _reach(len(recorded), tries) * float(np.std(recorded, ddof=1))
    return mean - reach, mean + reach


def _reach(recorded: int, tries: int) -> float:
    """Half of that interval in standard deviations."""
    return float(stdtrit(recorded - 1, 1 - (1 - LEVEL) / (2 * tries))) * (1 + 1 / recorded) ** 0.5


def caught(recorded: int, tries: int, lower: float, spread: float) -> float:
    """How often at least one of so many runs falls out of the interval of so many recorded ones, if what they really
    give is `lower` points below; 0: the false alarms. spread: SD between runs in points. By simulation, always the
    same."""
    draws = np.random.default_rng(0).normal(0, spread, (DRAWS, recorded + tries))
    old, new = draws[:, :recorded], draws[:, recorded:] - lower
    off = np.abs(new - old.mean(axis=1, keepdims=True)) > _reach(recorded, tries) * old.std(
        axis=1, ddof=1, keepdims=True
    )
    return float(off.any(axis=1).mean())
