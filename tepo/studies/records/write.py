"""From units in the store to their records."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tepo.common.errors import UserError
from tepo.common.files import exclusive, parse_json, write_json
from tepo.policy.model.model_location import BASES, RECIPE_FILE, base_fingerprint, read_bases
from tepo.store.cost import Cost
from tepo.store.excerpt import Again, Excerpt
from tepo.store.records.archive import merged, read_records, write_records
from tepo.store.records.run_record import Measured, Record, Verdicts, facts_of
from tepo.store.records.thinned_metrics import differing_step, pack
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import RECIPE
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned
from tepo.studies.records.fallen import fallen, sweep_runs
from tepo.studies.records.read import RecordsById
from tepo.studies.store_check import check_contents

# what makes a result one of today's benchmark; stop: where a chat template may end a response
_TASK = ("fingerprint", "grading", "content_hash", "wrap", "thinking", "stop")


@dataclass(frozen=True)
class Written:
    """Numbers of runs recorded, of records of other runs that the file keeps, and of runs that are not done."""

    recorded: int
    kept: int
    missing: int


def record_study(path: Path, planned: Planned) -> Written:
    """Add the finished runs of the store to a file of records, which keeps its records of other runs: a study can be
    computed in parts, on several machines. Writes nothing where nothing is finished. Raises UserError for a run that
    is damaged, as every file of its weights is read: a record outlives the run. Raises UserError with exit code BUSY
    when another process writes the file: one would drop what the other adds. Bases that are folders are recorded beside
    it, by their hash. Raises UserError where another base of the same name is: its runs could no longer be found."""
    units = unique(unit for _, units in planned for unit in units)
    named = [(study.name, unit) for study, part in planned for unit in part if unit.done()]
    for _, unit in named:
        if unit.row.objective is not None:
            check_contents(unit.run)
    with exclusive(path) if named else nullcontext():
        old = read_records(path)
        new = {record.id: record for record in (_record(name, unit) for name, unit in named)}
        records = merged(old, new.values())
        if new:
            _record_bases(path.with_name(BASES), [unit for _, unit in named])
            write_records(path, records)
    known = {record.id for record in records}
    return Written(len(new), len(records) - len(new), sum(unit.id not in known for unit in units))


@dataclass(frozen=True)
class Quoted:
    """known: runs of which the file now has an excerpt. lacking: those of which it should have one and the store has no
    dumps of a fall."""

    known: int
    lacking: tuple[Unit, ...]


def record_excerpts(path: Path, planned: Planned) -> Quoted:
    """Add to the records of a file excerpts of the runs that `fallen` chooses, as far as the store holds these runs
    with their token dumps, and drop those of other runs. Nothing else of a record changes: an excerpt of a run that was
    made again says so. Raises UserError where nothing is on record, and as `record_study` does."""
    with exclusive(path):
        records = {record.id: record for record in read_records(path)}
        if not records:
            what, fix = "nothing is on record of which there could be excerpts", "first `tepo records write` without it"
            raise UserError(what, where=str(path), fix=fix)
        known = RecordsById.of(records.values())
        chosen: dict[str, Unit] = {}
        for study, units in planned:
            filled = {unit.id: unit for unit in (known.fill(study, unit) for unit in units) if unit.record}
            chosen |= {id: filled[id] for id in fallen(sweep_runs(filled.values()))}
        for id, record in records.items():
            new = _excerpt(record, RunFolder(chosen[id].folder)) if id in chosen else None
            records[id] = replace(record, quoted=new or (record.quoted if id in chosen else None))
        write_records(path, records.values())
    lacking = tuple(unit for id, unit in chosen.items() if records[id].quoted is None)
    return Quoted(len(chosen) - len(lacking), lacking)


def _excerpt(record: Record, run: RunFolder) -> Excerpt | None:
    """Excerpt of a recorded run from its folder in the store, which may be that of the same run made again."""
    excerpt = run.excerpt() if run.finished() else None
    sessions = _joined(run.sessions(()))
    if excerpt is None or {one["started"] for one in sessions} <= {one["started"] for one in record.made}:
        return excerpt
    return replace(excerpt, again=Again(sessions, differing_step(record.shown, pack(run.metrics()))))


def _record_bases(file: Path, units: Sequence[Unit]) -> None:
    known, bases = read_bases(file), {}
    for path, revision in {(unit.config.model.path, unit.config.model.revision) for unit in units}:
        folder = Path(path).expanduser()
        if path.startswith("package:") or not folder.is_dir():
            continue
        recipe = folder / RECIPE_FILE  # a base that `tepo warmstart` made says how
        made = parse_json(recipe.read_bytes()).get("made", {}) if recipe.is_file() else {}
        bases[path] = {"hash": base_fingerprint(path, revision), "made": _nameless(made)}
        if known.get(path, bases[path])["hash"] != bases[path]["hash"]:
            fix = f"give this one another name, or move {file} and the records beside it away"
            raise UserError("the records are of another base of this name", where=path, fix=fix)
    if bases:
        write_json(file, dict(sorted((known | bases).items())))


def _record(study: str, unit: Unit) -> Record:
    """Record of a unit that the store holds, trained and measured."""
    verdicts = {}
    for name in sorted(unit.benchmarks):
        result, answers = unit.run.result(name), unit.run.right_answers(name)
        assert result is not None
        assert answers is not None
        task = {key: result.task[key] for key in _TASK if key in result.task}
        on = Measured(name, answers.samples, result.grader, task, answers.problems)
        verdicts[name] = Verdicts(on, answers.right, unit.run.timeouts(name))
    return Record(
        unit.folder,
        RECIPE,
        study,
        unit.label,
        unit.model,
        unit.seed,
        unit.overrides,
        unit.run.ending(),
        _joined(unit.run.sessions(unit.benchmarks)),
        tuple(_short(cost) for cost in unit.run.costs()),
        pack(unit.run.metrics()),
        verdicts,
        unit.run.validated() if unit.row.objective is not None else None,
    )


def _short(cost: Cost) -> Cost:
    """To a tenth of a second."""
    seconds: dict[str, Any] = {name: round(value, 1) for name, value in vars(cost).items() if isinstance(value, float)}
    return replace(cost, **seconds)


def _nameless(session: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in session.items() if key != "host"}


def _joined(sessions: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Sessions of the same versions and machine as one, from the first start to the last end. Records are given to
    others, so the machine's own name stays with the run."""
    groups: list[list[Mapping[str, Any]]] = []
    for session in map(_nameless, sessions):
        same = next((group for group in groups if facts_of(group[0]) == facts_of(session)), None)
        if same is None:
            groups.append(same := [])
        same.append(session)
    return tuple(
        {
            "started": min(str(one.get("started")) for one in group),
            "ended": max((str(one["ended"]) for one in group if one.get("ended")), default=None),
            **facts_of(group[0]),
        }
        for group in groups
    )
