"""Records on the screen."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from tepo.common import provenance
from tepo.reporting.progress import say
from tepo.store.records.archive import SUFFIX, read_records
from tepo.store.records.run_record import Record
from tepo.studies.plan import Unit
from tepo.studies.records.read import RecordsById, plan_by_file, record_files
from tepo.studies.records.recheck import agreement, machines
from tepo_cli.screen import fixed, show


def show_files() -> None:
    """A line a file of records."""
    files = record_files()
    if not files:
        say("nothing is recorded: `tepo records write STUDY`")
        return
    table = Table("file", *map(fixed, ("runs", "kB", "made", "tepo", "CPU")))
    for path in files:
        records = read_records(path)
        sessions = [session for record in records for session in record.sessions()]
        table.add_row(
            str(path),
            str(len(records)),
            f"{path.stat().st_size / 1000:.1f}",
            _days(records),
            *(
                ", ".join(dict.fromkeys(str(session.get(key) or "unknown") for session in sessions))
                for key in ("tepo", "cpu")
            ),
        )
    show(table)


def show_runs(names: Sequence[str], scale: str) -> None:
    """A line a record, file after file."""
    kept, plans = RecordsById.read(), plan_by_file(names, scale, Path("runs"))
    files = {path.name.removesuffix(SUFFIX): path for path in record_files()}
    for name, planned in plans.items():
        records = read_records(files[name]) if name in files else []
        today = {unit.id for study, units in planned for unit in units if kept.fill(study, unit).record}
        table = Table("row", *map(fixed, ("seed", "run", "steps", "accuracy %", "made", "today's")), title=name)
        for record in records:
            right = sum(sum(one.right) for one in record.verdicts.values())
            samples = sum(len(one.right) * one.on.samples for one in record.verdicts.values())
            table.add_row(
                record.label,
                str(record.seed),
                record.id,
                str(record.ended or len(record.metrics())),
                (f"{100 * right / samples:.1f}" if samples else "–"),
                _days([record]),
                "yes" if record.id in today else "no",
            )
        show(table)


def show_agreement(pairs: Sequence[tuple[Unit, Unit]]) -> None:
    """Each recorded run beside the same one, run anew."""
    table = Table("row", *map(fixed, ("seed", "run", "problems", "differ", "ended", "ended anew")))
    for unit, again in pairs:
        one = agreement(unit, again)
        ends = (str(ending or "") for ending in one.endings)
        table.add_row(unit.label, str(unit.seed), unit.id, str(one.problems), str(one.differ), *ends)
    show(table)
    facts = provenance.facts()
    say(f"recorded on {'; '.join(machines([unit for unit, _ in pairs]))}")
    say(f"run anew on {facts['cpu']}, torch {facts['torch']}")


def _days(records: Sequence[Record]) -> str:
    """The first and last day on which they were made."""
    days = sorted(str(session["started"])[:10] for record in records for session in record.sessions())
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "unknown"
