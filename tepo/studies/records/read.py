"""Records of runs in `records/`: which of them are today's, and units that are read from them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from tepo.common import paths
from tepo.jobs.validate import problems_hash
from tepo.problems.benchmarks import Benchmark, load_benchmark
from tepo.problems.hashes import set_hash
from tepo.store.evaluation_result import is_current
from tepo.store.records.archive import SUFFIX, read_records
from tepo.store.records.run_record import Record
from tepo.store.run_id import RECIPE
from tepo.studies.claims import SCALE
from tepo.studies.plan import Unit, reporting_seeds
from tepo.studies.plan_studies import Planned, plan_all
from tepo.studies.study import CLAIMS, Study
from tepo.studies.tuning_result import with_chosen


def plan_by_file(names: Iterable[str], scale: str, store: Path, overrides: Sequence[str] = ()) -> dict[str, Planned]:
    """The plans behind files of records, by the name of the file: a study, each panel of a table of panels, or all
    claims together. overrides: those that the studies were run with."""
    plans: dict[str, Planned] = {}
    for name in names:
        if name == CLAIMS:
            plans[CLAIMS] = plan_all([CLAIMS], SCALE, store=store, overrides=overrides)
        else:
            planned = plan_all([name], scale, store=store, overrides=overrides)
            plans |= {study.name: [(study, units)] for study, units in planned}
    return plans


def file_of(name: str) -> Path:
    """File of the records of a study, or of the claims: beside the folder of its file."""
    kind = next(kind for kind in ("experiments", "ablations") if name in paths.names(kind))
    return paths.find(kind, name).parent.parent / "records" / f"{name}{SUFFIX}"


def record_files() -> list[Path]:
    """Every file of records, the user's own first; a shipped one of the same name is left out."""
    files: dict[str, Path] = {}
    for folder in paths.folders("records"):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            files.setdefault(path.name, path)
    return list(files.values())


def recorded_names() -> list[str]:
    """The studies that have records."""
    return [path.name.removesuffix(SUFFIX) for path in record_files()]


def with_records(planned: Planned, scale: str, seeds: Sequence[int] | None = None) -> list[tuple[Study, list[Unit]]]:
    """The plan with each unit that the store lacks read from its record, where one of it is there and of today; of a
    study that tunes, also the units of the rows whose settings the records choose.

    Raises UserError for a damaged file of records."""
    kept = RecordsById.read()

    def filled(study: Study, unit: Unit) -> Unit:
        return unit if unit.done() else kept.fill(study, unit)

    known = []
    for study, units in planned:
        fill = partial(filled, study)
        read, tune = list(map(fill, units)), study.tune_at(scale)
        if tune:
            choosing = [unit for unit in read if unit.tuning or unit.row.base]
            read = with_chosen(choosing, tune, reporting_seeds(study, scale, seeds), fill)
        known.append((study, read))
    return known


@dataclass(frozen=True)
class RecordsById:
    """Records by the id of their run, of several with what any has measured, and the names of all. Benchmarks are read
    once for all units."""

    by_id: dict[str, Record]
    names: set[tuple[str, str, str, int]]
    benchmark: Callable[[str], Benchmark] = field(default_factory=lambda: cache(load_benchmark))
    content_hash: Callable[[str], str] = field(
        default_factory=lambda: cache(lambda name: set_hash(load_benchmark(name).load_problems()))
    )

    @classmethod
    def read(cls) -> "RecordsById":
        """All records there are. Raises UserError for a damaged file."""
        return cls.of(record for path in record_files() for record in read_records(path))

    @classmethod
    def of(cls, records: Iterable[Record]) -> "RecordsById":
        by_id: dict[str, Record] = {}
        names = set()
        for record in records:
            names.add(record.name)
            if one := by_id.get(record.id):
                verdicts, validation = {**record.verdicts, **one.verdicts}, one.validation or record.validation
                quoted = one.quoted or record.quoted
                record = replace(one, verdicts=verdicts, validation=validation, quoted=quoted)
            by_id[record.id] = record
        return cls(by_id, names)

    def fill(self, study: Study, unit: Unit) -> Unit:
        """The unit, read from its record where one of it is there and of today."""
        record = self.by_id.get(unit.id)
        if record is not None and self._is_current(record, unit):
            return replace(unit, record=replace(record, path=unit.folder))
        named = (study.name, unit.label, unit.model, unit.seed) in self.names
        return replace(unit, stale=record is not None or named)

    def _is_current(self, record: Record, unit: Unit) -> bool:
        """Tell whether the record is of today's recipe and of all that the unit is measured on, as it is today."""
        if unit.tuning and (record.validation is None or record.validation.problems != problems_hash(unit.config)):
            return False
        if record.recipe != RECIPE or not record.verdicts.keys() >= set(unit.benchmarks):
            return False
        for name in unit.benchmarks:
            task, benchmark = record.verdicts[name].on.task, self.benchmark(name)
            prompts: dict[str, Any] = {"wrap": unit.config.model.wrap, "thinking": unit.config.model.thinking}
            if benchmark.procedural:  # they depend on code too, which the benchmark's fingerprint does not hold
                prompts["content_hash"] = self.content_hash(name)
            if not is_current(task, benchmark, prompts):
                return False
        return True
