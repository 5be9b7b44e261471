"""Records on the screen."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tepo.common import provenance
from tepo.reporting.progress import say
from tepo.store.facts import Facts
from tepo.store.records import check_content, opened, read_frames
from tepo.studies.plan import Unit
from tepo.studies.planned_facts import Records, record_folders
from tepo.studies.record_runs import agreement, machines, plan_by_folder
from tepo_cli.screen import show


def show_folders() -> None:
    """A line a folder of records."""
    folders, lines = record_folders(), []
    if not folders:
        say("nothing is recorded: `tepo records write STUDY`")
        return
    for folder in folders:
        runs = read_frames(folder, names=("runs",)).runs
        sessions = [session for row in runs.itertuples(index=False) for session in opened(row, folder)["made"]]
        size = f"{sum(file.stat().st_size for file in folder.iterdir()) / 1000:.1f}"
        on = (
            ", ".join(dict.fromkeys(str(session.get(key) or "unknown") for session in sessions))
            for key in ("tepo", "cpu")
        )
        lines.append((str(folder), str(len(runs)), size, _days(sessions), *on))
    show(("folder", "runs", "kB", "made", "tepo", "CPU"), lines, wrapped=("folder",))


def show_recorded(names: Sequence[str], scale: str | None) -> None:
    """A line a record, folder after folder. Raises UserError for frames that are not those that were written."""
    folders, records = {folder.name: folder for folder in record_folders()}, Records.found()
    for name, planned in plan_by_folder(names, scale, Path("runs")).items():
        lines = []
        if name in folders:
            check_content(folders[name])
            today = {unit.id for study, units in planned for unit in records.recorded(study, units)}
            frames = read_frames(folders[name])
            totals = frames.scores.groupby("run", observed=True)[["right", "samples"]].sum().astype(float)
            for row in frames.runs.itertuples(index=False):
                values = opened(row, folders[name])
                measured = row.run in totals.index
                share = f"{100 * totals.right[row.run] / totals.samples[row.run]:.1f}" if measured else "–"
                ended, mark = str(values["ending"] or row.trained), "yes" if row.run in today else "no"
                lines.append((row.label, str(row.seed), row.run, ended, share, _days(values["made"]), mark))
        heads = ("row", "seed", "run", "steps", "accuracy %", "made", "today's")
        show(heads, lines, name, wrapped=("row",))


def show_agreement(units: Sequence[Unit], recorded: Facts, anew: Facts) -> None:
    """Each recorded run beside the same one, run anew."""
    lines = []
    for unit in units:
        comparison = agreement(unit, recorded, anew)
        ends = (str(ending or "") for ending in comparison.endings)
        lines.append((unit.label, str(unit.seed), unit.id, str(comparison.problems), str(comparison.differ), *ends))
    show(("row", "seed", "run", "problems", "differ", "ended", "ended anew"), lines, wrapped=("row",))
    facts = provenance.facts()
    say(f"recorded on {'; '.join(machines(recorded))}")
    say(f"run anew on {facts['cpu']}, torch {facts['torch']}")


def _days(sessions: Iterable[dict[str, object]]) -> str:
    """The first and last day on which runs were made."""
    days = sorted(str(session["started"])[:10] for session in sessions)
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "unknown"
