"""Scores of the single runs of a study, from the store or from records."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tepo.reporting.tables.profile_table import NOTE, RunGroup, profile_blocks, run_groups
from tepo.reporting.tables.table import Table
from tepo.results.tables import baseline_label, row_specs, units_by_row
from tepo.studies.plan import Unit
from tepo.studies.study import Study


def study_groups(study: Study, units: Sequence[Unit]) -> list[RunGroup]:
    """The rows with two measured runs or more beside each other, a group a model and setting. A run of tuning is none,
    and one that lacks a benchmark of its row is left out."""
    rows = units_by_row([unit for unit in units if not unit.tuning])
    scores = {
        key: np.array([one for unit in row if (one := accuracies(unit)) is not None]) for key, row in rows.items()
    }
    return run_groups(row_specs(rows), scores, baseline_label(study, units))


def with_profiles(table: Table, study: Study, units: Sequence[Unit]) -> Table:
    """The table with a block of each group of runs behind its means."""
    groups = study_groups(study, units)
    note = NOTE if groups else "No profiles: no two rows were measured under two seeds or more."
    return replace(table, blocks=(*table.blocks, *profile_blocks(groups)), notes=(*table.notes, note))


def accuracies(unit: Unit) -> list[float] | None:
    """Accuracies on the benchmarks of a unit, in the order of their names; None where one was not measured."""
    accuracies = []
    for name in sorted(unit.config.data.benchmarks):
        answers = unit.run.right_answers(name)
        if answers is None:
            return None
        accuracies.append(sum(answers.right) / (len(answers.problems) * answers.samples))
    return accuracies
