"""From units in the store to their records, which runs of which plans are behind a folder of them, and whether a
recorded run that is run anew gives the same verdicts."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.files import exclusive, parse_json, write_json
from tepo.common.grouping import grouped
from tepo.policy.model.model_location import BASES, RECIPE_FILE, base_fingerprint, is_gone, on_hub, read_bases, resolve
from tepo.reporting.tables.provenance_note import cpu
from tepo.store.early_stop import Ending
from tepo.store.facts import Facts, curves_of, joined_curves, joined_scores, thinned
from tepo.store.records import NAME, read_frames, read_index, stored, write_frames
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import RECIPE
from tepo.studies.claims import OWN, check_registered, claim_files, file_of, load_claims, study_of
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned, claims_apart, plan_all, plan_studies
from tepo.studies.planned_facts import Records, facts_of, read_facts, record_folders
from tepo.studies.store_check import check_contents
from tepo.studies.study import CLAIMS, Study, load_study, study_file


@dataclass(frozen=True)
class RecordCounts:
    """Numbers of runs recorded, of records of other runs that the folder keeps, of runs that are not done, and of those
    that a folder beside it has on record."""

    recorded: int
    kept: int
    missing: int
    elsewhere: int


def plan_by_folder(
    names: Iterable[str],
    scale: str | None,
    store: Path,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Planned]:
    """The plans behind folders of records, by the name of the folder: a study, each panel of a table of panels, or a
    batch of claims, which has its own scale; `claims` are all batches of the scale. seeds, overrides: those that the
    studies were run with."""
    plans: dict[str, list[tuple[Study, list[Unit]]]] = {}
    for name in names:
        if name == CLAIMS or file_of(name) in (CLAIMS, OWN):
            claims = [claim for claim in load_claims(files=[file_of(name)]).claims if claim.family == name]
            of_batch = plan_studies(map(study_of, claims), scale, store=store) if claims else []
            for study, units in of_batch or plan_all([CLAIMS], scale, store=store):
                plans.setdefault(study.batch, []).append((study, units))
        else:
            planned = plan_all([name], scale, store=store, seeds=seeds, overrides=overrides)
            plans |= {study.name: [(study, units)] for study, units in planned}
    return dict(plans)


def folder_of(name: str) -> Path:
    """Folder of the records of a study, or of a batch of claims: in `records` beside the folder of its file."""
    file = claim_files().get(file_of(name))
    if file is None:
        file = study_file(name)
        assert file is not None, name
    top = next(folder for folder in file.parents if folder.name in paths.STUDIES)
    return top.parent / "records" / name


def recorded_names(scale: str) -> list[str]:
    """The studies, and the batches of claims, that have records of runs at a scale. Raises UserError for a damaged
    file."""
    recorded = {folder.name: folder for folder in record_folders()}
    batches = {claim.family: claim.scale for claim in load_claims(files=set(map(file_of, recorded))).claims}

    def there(name: str) -> bool:
        if name in batches:
            return batches[name] == scale
        models = {model for *_, model, _ in read_index(recorded[name])["runs"].values()}
        return (here := load_study(name).scales.get(scale)) is not None and not models.isdisjoint(here.models)

    return [name for name in recorded if there(name)]


def record_study(folder: Path, planned: Planned) -> RecordCounts:
    """Add the finished runs of the store to a folder of records, which keeps its records of other runs: a study can be
    computed in parts, on several machines. Writes nothing where nothing is finished. Raises UserError for a run that is
    damaged, as every file of its weights is read: a record outlives the run. Raises UserError for a run of a registered
    claim whose commit does not hold the claim (`check_registered`). Raises UserError with exit code BUSY when another
    process writes the folder: one would drop what the other adds. A run that a folder beside it has on record from
    another training, which on another kind of CPU ends with other bits, is left out: what tables show stays. Bases that
    are folders are recorded beside it, by their hash. Raises UserError where another base of the same name is: its runs
    could no longer be found."""
    units = unique(unit for _, units in planned for unit in units)
    done = [(study, [unit for unit in units if unit.done()]) for study, units in planned]
    registered = claims_apart(done)[0]
    files = {file_of(study.batch) for study, _ in registered}
    claims = {claim.name: claim for claim in load_claims(files=files).claims}
    for study, part in registered:
        for unit in part:
            check_registered(claims[study.name], unit.id, unit.folder.sessions(()))
    for unit in (unit for _, part in done for unit in part):
        if unit.trains:
            check_contents(unit.folder)
    elsewhere = _trained_elsewhere(folder, done)
    done = [(study, [unit for unit in part if unit.id not in elsewhere]) for study, part in done]
    # a lock of its own: `write_frames` takes the folder's
    with exclusive(folder.with_name(f"{folder.name}.write")) if any(part for _, part in done) else nullcontext():
        old = read_frames(folder)
        new = _frames(done)
        joined = _merged(old, new)
        if len(new.runs):
            folder.parent.mkdir(parents=True, exist_ok=True)
            _record_bases(folder.with_name(BASES), [unit for _, part in done for unit in part])
            write_frames(folder, joined)
    missing = {unit.id for unit in units} - set(joined.runs["run"]) - elsewhere
    return RecordCounts(len(new.runs), len(joined.runs) - len(new.runs), len(missing), len(elsewhere))


def _trained_elsewhere(folder: Path, done: Planned) -> set[str]:
    """Trained runs that a folder beside this one, and not this one, has on record as they are today, from another
    training. A claim has runs of its own."""
    here = set(read_frames(folder).runs["run"])
    units = [unit for _, part in claims_apart(done)[1] for unit in part if unit.trains and unit.id not in here]
    records = Records.found([path for path in record_folders() if path.parent == folder.parent and path != folder])

    def begun(sessions: Iterable[Mapping[str, Any]]) -> str:
        return min((str(session.get("started")) for session in sessions), default="")

    return {
        unit.id
        for unit in units
        if records.holds(unit)
        and (record := records.known(unit.id))
        and begun(record.made) != begun(unit.folder.sessions(unit.benchmarks))
    }


def _frames(done: Planned) -> Facts:
    """Records of units that the store holds, trained and measured."""
    units = {unit.id: (study.name, unit) for study, part in done for unit in part}
    _, facts = read_facts(done)
    rows = []
    for study, unit in units.values():
        run_facts = facts.of(unit.id)
        costs = [  # to a tenth of a second
            replace(cost, **{name: round(value, 1) for name, value in vars(cost).items() if isinstance(value, float)})
            for cost in run_facts.costs
        ]
        values = {"made": joined_sessions(run_facts.made), "costs": costs, "excerpt": unit.folder.excerpt()}
        rows.append({
            "run": unit.id, "recipe": RECIPE, "study": study, "label": unit.label, "model": unit.model,
            "seed": unit.seed, "words": list(unit.overrides), "trained": run_facts.trained,
            **stored(run_facts._asdict() | values),
        })  # fmt: skip
    curves = [curves_of(id, thin) for id in units if (thin := thinned(facts.metrics(id)))]
    return Facts(pd.DataFrame(rows), facts.scores, joined_curves(curves))


def _merged(old: Facts, new: Facts) -> Facts:
    """The new records, and of the old ones those of other runs. A run that has become another one by a change of its
    study, the code or the problems replaces what it was."""
    if not len(new.runs):
        return old
    names = set(zip(*(new.runs[name] for name in NAME), strict=True))
    same_name = [name in names for name in zip(*(old.runs[name] for name in NAME), strict=True)]
    dropped = set(old.runs["run"][same_name]) | set(new.runs["run"])

    def kept(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[~frame["run"].isin(dropped)]

    runs = pd.concat([kept(old.runs), new.runs], ignore_index=True)
    return Facts(runs, joined_scores([kept(old.scores), new.scores]), joined_curves([kept(old.curves), new.curves]))


def _record_bases(file: Path, units: Sequence[Unit]) -> None:
    old_bases, bases = read_bases(file), {}
    for path, revision in {(model.path, model.revision) for unit in units for model in unit.config.model.loaded}:
        if path.startswith("package:") or on_hub(path) or is_gone(path):
            continue
        folder = Path(resolve(path))
        recipe = folder / RECIPE_FILE  # a base that `tepo model warmstart` made says how; one that was brought does not
        origin = parse_json(recipe.read_bytes()).get("made", {}) if recipe.is_file() else {}
        origin = origin or old_bases.get(path, {}).get("made", {})
        bases[path] = {
            "hash": base_fingerprint(path, revision),
            "made": {key: origin[key] for key in origin if key != "host"},
        }
        if old_bases.get(path, bases[path])["hash"] != bases[path]["hash"]:
            fix = f"give this one another name, or move {file} and the records beside it away"
            raise UserError("the records are of another base of this name", where=path, fix=fix)
    if bases:
        write_json(file, dict(sorted((old_bases | bases).items())))


def joined_sessions(sessions: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Sessions of the same versions and machine as one, from the first start to the last end. Records are given to
    others, so the machine's own name stays with the run."""
    apart = ("what", "started", "ended", "host")
    words = (json.dumps({key: session[key] for key in session if key not in apart}) for session in sessions)
    return tuple(
        {
            "started": min(str(session.get("started")) for session in group),
            "ended": max((str(session["ended"]) for session in group if session.get("ended")), default=None),
            **json.loads(facts),
        }
        for facts, group in grouped(zip(words, sessions, strict=True)).items()
    )


def drawn(
    planned: Planned, count: int, seed: int, records: Records | None = None
) -> tuple[list[tuple[Study, Unit]], Facts]:
    """Some of the recorded runs of a plan, drawn at random whatever its store holds, and what is recorded of them;
    fewer where fewer are recorded. records: read instead of all that are in their place."""
    records = records or Records.found()
    recorded = {unit.id: (study, unit) for study, units in planned for unit in records.recorded(study, units)}
    some = random.Random(seed).sample(sorted(recorded), min(count, len(recorded)))
    chosen = [recorded[id] for id in some]
    return chosen, facts_of([(study, [unit]) for study, unit in chosen], records)


def anew(unit: Unit, store: Path) -> Unit:
    """The run of a recorded unit, to be run in another store. Raises UserError where its base is not here."""
    if unit.recorded_base:
        what, where = "this machine has another base of that name than the one on record", ", ".join(unit.other_bases)
        raise UserError(what, where=where, fix="bring its files here, or name studies of other bases")
    config = replace(unit.config, store=str(store))
    return replace(unit, recorded=False, folder=RunFolder(store / unit.id), config=config)


@dataclass(frozen=True)
class Agreement:
    """differ: of `problems`, those whose number of right answers is another one than the record says."""

    problems: int
    differ: int
    endings: tuple[Ending | None, Ending | None]  # recorded, and anew

    def __bool__(self) -> bool:
        return not self.differ and self.endings[0] == self.endings[1]


def agreement(unit: Unit, recorded: Facts, again: Facts) -> Agreement:
    """A record beside the same run, run anew."""
    pairs = [(recorded.right(unit.id, name), again.right(unit.id, name)) for name in unit.benchmarks]
    problems = sum(len(old.problems) for old, _ in pairs if old)
    same = sum(a == b for old, new in pairs if old and new for a, b in zip(old.right, new.right, strict=True))
    return Agreement(problems, problems - same, (recorded.of(unit.id).ending, again.of(unit.id).ending))


def machines(facts: Facts) -> list[str]:
    """The kinds of CPU and versions of torch that made them, in words."""
    sessions = (session for made in facts.runs["made"] for session in made)
    return list(dict.fromkeys(f"{cpu(session)}, torch {session.get('torch')}" for session in sessions))
