"""From a plan to what is known of its runs: the frames that tables, claims and figures are computed from."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.files import parse_json
from tepo.common.grouping import grouped
from tepo.evaluation.settings import asked_by
from tepo.jobs.validate import problems_hash
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.reporting.progress import say
from tepo.store.evaluation_result import outdated
from tepo.store.facts import Facts, Known, curves_of, facts_from, scores_of
from tepo.store.records import CONTENT, opened, read_frames, read_index
from tepo.store.run_id import RECIPE
from tepo.studies.plan import Unit, on_record, reported, reporting_seeds, row_key, scale_of
from tepo.studies.plan_studies import Planned, plan_all, plan_studies
from tepo.studies.study import CLAIMS, Study, load_study, study_names
from tepo.studies.tuning_result import under_seeds, with_chosen

# of a result's task: what makes it one of today's benchmark; stop: where a chat template may end a response
_TASK = ("fingerprint", "grading", "content_hash", "wrap", "thinking", "system", "stop")


@paths.one_look()
def read_facts(
    planned: Planned, seeds: Sequence[int] | None = None, *, records: bool = False
) -> tuple[list[tuple[Study, list[Unit]]], Facts]:
    """The plan, and what the store holds of its runs; with records also what these hold of runs that the store lacks,
    as far as they are of today, and the units of rows whose settings they choose. Without seeds each row has all those
    that records hold it under, beside the study's own. Where a base on record is another one on this machine, records
    are read by theirs, and runs of the one here are no part of it.

    Raises UserError for damaged files of the store or of records."""
    if not records:
        return list(planned), facts_of(planned, None)
    all_records, plan = Records.found(), list[tuple[Study, list[Unit]]]()
    for study, units in planned:
        units = all_records.all_units(study, units, seeds)
        plan.append(
            (study, [unit if unit.done() else replace(unit, recorded=all_records.holds(unit)) for unit in units])
        )
    return plan, facts_of(plan, all_records)


@paths.one_look()
def recorded_facts(planned: Planned) -> tuple[list[tuple[Study, list[Unit]]], Facts]:
    """What records hold of a plan under all seeds, whatever the store holds: the studies with such units alone."""
    records = Records.found()
    plan = [(study, recorded) for study, units in planned if (recorded := records.recorded(study, units))]
    return plan, facts_of(plan, records)


@paths.one_look()
def measured_studies(
    scale: str | None,
    store: Path,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    *,
    records: bool = False,
) -> list[str]:
    """The studies that are worth a page: of each two rows at least are measured, or all of it, and it shows a run
    that no larger one shows, and means no other run by the same label."""
    if not records and not any(store.glob("*/config.json")):
        return []
    candidates: dict[str, tuple[list[Unit], set[str]]] = {}
    for name in study_names():
        try:
            study = load_study(name)
            if study.panels or study.own_scale(scale) not in study.scales:
                continue
            planned = plan_studies([study], scale, store=store, seeds=seeds, overrides=overrides)
            planned, facts = read_facts(planned, seeds, records=records)
        except UserError:  # a file of the user's own that is wrong, or that these seeds and overrides do not suit
            continue
        units = [unit for _, part in planned for unit in part]
        done = [unit for unit in units if facts.of(unit.key).done]
        if len({row_key(unit) for unit in done}) > 1 or (done and len(done) == len(units)):
            candidates[name] = units, {unit.id for unit in done}
    chosen, shown_ids = set[str](), set[str]()
    shown: dict[tuple[str, str, str, int], str] = {}
    # those that are complete first, of these the largest
    for name, (units, ids) in sorted(
        candidates.items(), key=lambda candidate: (-len(candidate[1][1]) / len(candidate[1][0]), -len(candidate[1][1]))
    ):
        labels = {(scale_of(units), unit.label, unit.model, unit.seed): unit.id for unit in units}
        if not ids <= shown_ids and all(shown.get(label, id) == id for label, id in labels.items()):
            chosen.add(name)
            shown_ids, shown = shown_ids | ids, shown | labels
    claimed = [CLAIMS] if _any_claim(scale, store, records) else []
    return [*claimed, *(name for name in candidates if name in chosen)]


def _any_claim(scale: str | None, store: Path, records: bool) -> bool:
    """Tell whether all runs of a registered claim are measured."""
    try:
        planned = plan_all([CLAIMS], scale, store=store)
    except UserError as error:  # a draft of the user's own
        say(f"claims are left out: {error.what} in {error.where}")
        return False
    plan, facts = read_facts(planned, records=records)
    return any(part and all(facts.of(unit.key).done for unit in part) for _, part in plan)


def facts_of(planned: Planned, records: "Records | None") -> Facts:
    """Frames of a plan, a row of `runs` a unit. A run that several studies name is read once, for all of them: from
    records where one of them needs these, but for what the others have measured in the store. Raises UserError for
    damaged files."""
    known_runs, scores, curves = dict[str, Known](), list[pd.DataFrame](), list[pd.DataFrame]()
    for id, alike in grouped((unit.id, unit) for _, units in planned for unit in units).items():
        run = alike[0].folder
        benchmarks = list(dict.fromkeys(name for unit in alike if not unit.recorded for name in unit.benchmarks))
        for name in benchmarks:
            if (answers := run.right_answers(name)) and (result := run.result(name)):
                task = json.dumps({key: result.task[key] for key in _TASK if key in result.task})
                scores.append(scores_of(id, name, answers, result.grader, task, result.timeouts))
        if records and any(unit.recorded for unit in alike) and (record := records.known(id)):
            known_runs[id] = record
            continue
        if rows := run.metrics():
            curves.append(curves_of(id, rows))
        known_runs[id] = Known(
            "store" if run.opened.is_dir() else "",
            run.finished() or not alike[0].trains,
            alike[0].outcome,
            run.ending(),
            len(rows),
            tuple(run.sessions(benchmarks)),
            tuple(run.costs()),
            run.validated(),
        )
    runs = []
    for study, unit in ((study, unit) for study, units in planned for unit in units):
        done, names = unit.done(), (study.name, unit.label, unit.model, unit.seed)
        # a record is of it, or of another run of its name
        named = records is not None and (unit.id in records.by_run or names in records.named)
        runs.append({
            "study": study.name, "row": row_key(unit), "label": unit.row_label, "setting": dict(unit.row.setting.point),
            "model": unit.model, "seed": unit.seed, "objective": unit.row.objective, "tuning": unit.tuning,
            "steps": unit.steps, "words": unit.overrides, "run": unit.id, "done": done,
            "stale": named and not done, **vars(known_runs[unit.id]),
        })  # fmt: skip
    if records:
        recorded = [run for run, entry in known_runs.items() if entry.source == "record"]
        record_frames = [folder.frames for folder in records.folders.values() if folder]
        scores += [frames.scores[frames.scores["run"].isin(recorded)] for frames in record_frames]
        curves += [frames.curves[frames.curves["run"].isin(recorded)] for frames in record_frames]
        scores, curves = _first_of_each(scores, ["run", "benchmark"]), _first_of_each(curves, ["run"])
    return facts_from(runs, scores, curves)


def _first_of_each(frames: Sequence[pd.DataFrame], keys: list[str]) -> list[pd.DataFrame]:
    """The rows of all frames but those whose keys an earlier frame has."""
    first, seen = list[pd.DataFrame](), set[tuple[str, ...]]()
    for frame in frames:
        of_frame = set(frame[keys].drop_duplicates().itertuples(index=False, name=None))
        if again := of_frame & seen:
            keys_of = pd.MultiIndex.from_frame(frame[keys])
            frame = frame[~keys_of.isin(list(again))]
        first.append(frame)
        seen |= of_frame
    return first


@dataclass(frozen=True)
class _Folder:
    """What a folder of records holds. rows: the line of each run, as it is stored. tasks: of each run and benchmark how
    it was measured."""

    path: Path
    frames: Facts
    rows: dict[str, Any]
    tasks: dict[tuple[str, str], str]

    @classmethod
    def read(cls, path: Path) -> "_Folder":
        frames = read_frames(path)
        rows = {row.run: row for row in frames.runs.itertuples(index=False)}
        measured = frames.scores[["run", "benchmark", "task"]].drop_duplicates(["run", "benchmark"])
        tasks = {(run, name): task for run, name, task in measured.itertuples(index=False, name=None)}
        return cls(path, frames, rows, tasks)

    def values(self, run: str) -> dict[str, Any]:
        """The values of a run."""
        return opened(self.rows[run], self.path / "runs.parquet")


@dataclass(frozen=True)
class Records:
    """Records in all folders there are: which runs they hold, and what is in the folders that were asked for. Where
    several hold a run, the first counts."""

    by_run: dict[str, list[Path]]  # folders that hold a run
    named: set[tuple[str, str, str, int]]  # study, label, model and seed of each
    folders: dict[Path, _Folder | None]  # None until it is read
    opened: dict[str, Known] = field(default_factory=dict)  # by run, when it was asked for
    benchmark: Callable[[str], Benchmark] = field(default_factory=lambda: cache(load_benchmark))

    @classmethod
    def found(cls, folders: Sequence[Path] | None = None) -> "Records":
        """Those of some folders, without them of all that are in their place. Raises UserError for a damaged file."""
        records = cls({}, set(), {})
        for folder in record_folders() if folders is None else folders:
            records.folders[folder] = None
            for run, (study, label, model, seed) in read_index(folder)["runs"].items():
                records.by_run.setdefault(run, []).append(folder)
                records.named.add((study, label, model, seed))
        return records

    def _holding(self, run: str) -> list[_Folder]:
        """The folders that hold a run, read."""
        paths = self.by_run.get(run, ())
        read = [folder or _Folder.read(path) for path, folder in ((path, self.folders[path]) for path in paths)]
        self.folders.update(zip(paths, read, strict=True))
        return [folder for folder in read if run in folder.rows]

    def known(self, run: str) -> Known | None:
        """The record of a run, with the validation and the excerpt that any folder has of it."""
        if run not in self.opened and (held := self._holding(run)):
            first, *others = (folder.values(run) for folder in held)
            any_of = {name: [of[name] for of in (first, *others) if of[name]] for name in ("validation", "excerpt")}
            more = {name: values[0] if values else None for name, values in any_of.items()}
            ended, trained = first["ending"], held[0].rows[run].trained
            outcome = f"finished: {ended}" if ended else "finished"
            self.opened[run] = Known("record", finished=True, outcome=outcome, trained=trained, **first | more)
        return self.opened.get(run)

    def all_units(self, study: Study, units: Sequence[Unit], seeds: Sequence[int] | None = None) -> list[Unit]:
        """The units of a study, with those of rows whose settings records choose. Without `seeds` also those that are
        held under other seeds: those that the study was recorded under, and those that all its rows on record have, as
        other studies share some. A claim has its own seeds."""
        units = list(map(on_record, units))
        if tune := study.tune_at(scale := scale_of(units)):
            units = [unit for unit in units if unit.tuning or not unit.trains]
            units = with_chosen(units, tune, reporting_seeds(study, scale, seeds), self.share)
        if seeds is not None or study.registered:
            return units
        rows = grouped((row_key(unit), unit) for unit in reported(units) if unit.trains).values()
        every = sorted({seed for *_, seed in self.named} - set(tune.seeds if tune else ()))
        held = [list(filter(self.holds, under_seeds(row[0], row[0].row, every))) for row in rows]
        of_study = {seed for name, *_, seed in self.named if name == study.name}
        of_rows = [{unit.seed for unit in part} for part in held if part]
        chosen = of_study.union(set[int].intersection(*of_rows) if of_rows else ())
        planned = {(row_key(unit), unit.seed) for unit in reported(units)}
        more = (unit for part in held for unit in part if unit.seed in chosen)
        return [*units, *(unit for unit in more if (row_key(unit), unit.seed) not in planned)]

    def recorded(self, study: Study, units: Sequence[Unit]) -> list[Unit]:
        """The units of a study that are held, whatever the store holds."""
        return [replace(unit, recorded=True) for unit in self.all_units(study, units) if self.holds(unit)]

    def holds(self, unit: Unit) -> bool:
        """Tell whether a record is of today's recipe and of all that a unit is measured on, as it is today."""
        record = self.known(unit.id)
        if record is None or self._holding(unit.id)[0].rows[unit.id].recipe != RECIPE:
            return False
        if unit.tuning:
            return record.validation is not None and record.validation.problems == problems_hash(unit.config)
        return all(self._measures_today(unit, name) for name in unit.benchmarks)

    def _measures_today(self, unit: Unit, name: str) -> bool:
        tasks = (folder.tasks.get((unit.id, name)) for folder in self._holding(unit.id))
        if (task := next(filter(None, tasks), None)) is None:
            return False
        benchmark = self.benchmark(name)
        prompts = asked_by(unit.config)
        if benchmark.procedural:  # they depend on code too, which the benchmark's fingerprint does not hold
            prompts["content_hash"] = benchmark.content_hash
        return not outdated(parse_json(task), benchmark, prompts)

    def share(self, unit: Unit) -> float | None:
        """Validation of a unit that helps to choose, by the store or by its record."""
        if (share := unit.validation()) is not None or not self.holds(unit):
            return share
        record = self.known(unit.id)
        return record.validation.share if record and record.validation else None


def record_folders() -> list[Path]:
    """Every folder of records, the user's own first; a shipped one of the same name is left out."""
    folders: dict[str, Path] = {}
    for parent in paths.folders("records"):
        for path in sorted(parent.glob(f"*/{CONTENT}")):
            folders.setdefault(path.parent.name, path.parent)
    return list(folders.values())
