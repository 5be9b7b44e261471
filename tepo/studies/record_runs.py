"""From units in the store to their records, and which runs of which plans are behind a folder of them."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.files import exclusive, parse_json, write_json
from tepo.policy.model.model_location import BASES, RECIPE_FILE, base_fingerprint, read_bases
from tepo.store.cost import Cost
from tepo.store.excerpt import Again, Excerpt
from tepo.store.facts import Facts, curves_of, joined_curves, joined_scores
from tepo.store.records import NAME, Frames, excerpt_json, read_frames, stored, write_frames
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import RECIPE
from tepo.store.thinned_metrics import differing_step, thinned
from tepo.studies.claims import OWN, SCALE, claim_files, load_claims
from tepo.studies.fallen import fallen, sweep_runs
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned, plan_all
from tepo.studies.planned_facts import Records, read_facts, record_folders
from tepo.studies.registration import check_registered
from tepo.studies.store_check import check_contents
from tepo.studies.study import CLAIMS, Study


@dataclass(frozen=True)
class Written:
    """Numbers of runs recorded, of records of other runs that the folder keeps, and of runs that are not done."""

    recorded: int
    kept: int
    missing: int


def plan_by_folder(names: Iterable[str], scale: str, store: Path, overrides: Sequence[str] = ()) -> dict[str, Planned]:
    """The plans behind folders of records, by the name of the folder: a study, each panel of a table of panels, or a
    batch of claims; `claims` are all batches. overrides: those that the studies were run with."""
    plans: dict[str, list[tuple[Study, list[Unit]]]] = {}
    for name in names:
        if name == CLAIMS or name.rpartition("-")[0] in (CLAIMS, OWN):
            for study, units in plan_all([CLAIMS], SCALE, store=store, overrides=overrides):
                if name in (CLAIMS, study.batch):
                    plans.setdefault(study.batch, []).append((study, units))
        else:
            planned = plan_all([name], scale, store=store, overrides=overrides)
            plans |= {study.name: [(study, units)] for study, units in planned}
    return dict(plans)


def folder_of(name: str) -> Path:
    """Folder of the records of a study, or of a batch of claims: in `records` beside the folder of its file."""
    file = claim_files().get(name.rpartition("-")[0])
    if file is None:
        kind = next(kind for kind in ("experiments", "ablations") if name in paths.names(kind))
        file = paths.find(kind, name)
    return file.parent.parent / "records" / name


def recorded_names() -> list[str]:
    """The studies, and the batches of claims, that have records."""
    return [folder.name for folder in record_folders()]


def record_study(folder: Path, planned: Planned) -> Written:
    """Add the finished runs of the store to a folder of records, which keeps its records of other runs: a study can be
    computed in parts, on several machines. Writes nothing where nothing is finished. Raises UserError for a run that
    is damaged, as every file of its weights is read: a record outlives the run. Raises UserError for a run of a
    registered claim whose commit does not hold the claim (`check_registered`). Raises UserError with exit code BUSY
    when another process writes the folder: one would drop what the other adds. Bases that are folders are recorded
    beside it, by their hash. Raises UserError where another base of the same name is: its runs could no longer be
    found."""
    units = unique(unit for _, units in planned for unit in units)
    done = [(study, [unit for unit in units if unit.done()]) for study, units in planned]
    claims = {claim.name: claim for claim in load_claims().claims} if any(study.registered for study, _ in done) else {}
    for study, part in done:
        for unit in part if study.registered else ():
            check_registered(claims[study.name], unit.id, unit.in_store.sessions(()))
    for unit in (unit for _, part in done for unit in part):
        if unit.row.objective is not None:
            check_contents(unit.in_store)
    # a lock of its own: `write_frames` takes the folder's
    with exclusive(folder.with_name(f"{folder.name}.write")) if any(part for _, part in done) else nullcontext():
        old = read_frames(folder)
        new = _frames(done)
        joined = _merged(old, new)
        if len(new.runs):
            folder.parent.mkdir(parents=True, exist_ok=True)
            _record_bases(folder.with_name(BASES), [unit for _, part in done for unit in part])
            write_frames(folder, joined)
    known = set(joined.runs["run"])
    return Written(len(new.runs), len(joined.runs) - len(new.runs), sum(unit.id not in known for unit in units))


def _frames(done: Planned) -> Frames:
    """Records of units that the store holds, trained and measured."""
    units = {unit.id: (study.name, unit) for study, part in done for unit in part}
    _, facts = read_facts(done, "")
    rows = [_row(study, unit, facts.of(unit.id)) for study, unit in units.values()]
    curves = [curves_of(id, thin) for id in units if (thin := thinned(facts.metrics(id)))]
    return Frames(pd.DataFrame(rows), facts.scores, joined_curves(curves))


def _row(study: str, unit: Unit, known: Any) -> dict[str, Any]:
    short = tuple(_short(cost) for cost in known.costs)
    values = {"ending": known.ending, "made": _joined(known.made), "costs": short, "excerpt": None}
    return {
        "run": unit.id,
        "recipe": RECIPE,
        "study": study,
        "label": unit.label,
        "model": unit.model,
        "seed": unit.seed,
        "words": list(unit.overrides),
        "trained": known.trained,
        **stored(values | {"validation": known.validation}),
    }


def _merged(old: Frames, new: Frames) -> Frames:
    """The new records, and of the old ones those of other runs. A run that has become another one by a change of its
    study, the code or the problems replaces what it was."""
    if not len(new.runs):
        return old
    names = set(zip(*(new.runs[name] for name in NAME), strict=True))
    same_name = [name in names for name in zip(*(old.runs[name] for name in NAME), strict=True)]
    dropped = set(old.runs["run"][same_name]) | set(new.runs["run"])

    def kept(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[~frame["run"].isin(dropped)]

    return Frames(
        pd.concat([kept(old.runs), new.runs], ignore_index=True),
        joined_scores([kept(old.scores), new.scores]),
        joined_curves([kept(old.curves), new.curves]),
    )


@dataclass(frozen=True)
class Quoted:
    """known: how many runs of a folder have an excerpt. lacking: those of which it should have one and the store has no
    dumps of a fall."""

    known: int
    lacking: tuple[Unit, ...]


def record_excerpts(folder: Path, planned: Planned) -> Quoted:
    """Add to the records of a folder excerpts of the runs that `fallen` chooses, as far as the store holds these runs
    with their token dumps, and drop those of other runs. Nothing else of a record changes: an excerpt of a run that was
    made again says so. Raises UserError where nothing is on record, and as `record_study` does."""
    with exclusive(folder.with_name(f"{folder.name}.write")):
        frames = read_frames(folder)
        if not len(frames.runs):
            what, fix = "nothing is on record of which there could be excerpts", "first `tepo records write` without it"
            raise UserError(what, where=str(folder), fix=fix)
        kept = Records.found([folder])
        kept.read(set(frames.runs["run"]))
        held = [(study, [unit for unit in part if kept.holds(unit)]) for study, part in planned]
        recorded = [(study, [replace(unit, recorded=True) for unit in part]) for study, part in held]
        units = {unit.id: unit for _, part in recorded for unit in part}
        facts = kept.facts(recorded)
        chosen = fallen(sweep_runs(units.values(), facts))
        excerpts = {id: _excerpt(facts, id, units[id].in_store) or facts.of(id).excerpt for id in chosen}
        rows = [
            dict(zip(frames.runs.columns, row, strict=True)) | {"excerpt": excerpt_json(excerpts.get(row.run))}
            for row in frames.runs.itertuples(index=False)
        ]
        write_frames(folder, replace(frames, runs=pd.DataFrame(rows)))
    lacking = tuple(units[id] for id in chosen if excerpts[id] is None)
    return Quoted(len(chosen) - len(lacking), lacking)


def _excerpt(facts: Facts, id: str, run: RunFolder) -> Excerpt | None:
    """Excerpt of a recorded run from its folder in the store, which may be that of the same run made again."""
    excerpt = run.excerpt() if run.finished() else None
    sessions = _joined(run.sessions(()))
    if excerpt is None or {one["started"] for one in sessions} <= {one["started"] for one in facts.of(id).made}:
        return excerpt
    return replace(excerpt, again=Again(sessions, differing_step(facts.metrics(id), thinned(run.metrics()))))


def _record_bases(file: Path, units: Sequence[Unit]) -> None:
    known, bases = read_bases(file), {}
    for path, revision in {(unit.config.model.path, unit.config.model.revision) for unit in units}:
        folder = Path(path).expanduser()
        if path.startswith("package:") or not folder.is_dir():
            continue
        recipe = folder / RECIPE_FILE  # a base that `tepo model warmstart` made says how
        made = parse_json(recipe.read_bytes()).get("made", {}) if recipe.is_file() else {}
        bases[path] = {"hash": base_fingerprint(path, revision), "made": _nameless(made)}
        if known.get(path, bases[path])["hash"] != bases[path]["hash"]:
            fix = f"give this one another name, or move {file} and the records beside it away"
            raise UserError("the records are of another base of this name", where=path, fix=fix)
    if bases:
        write_json(file, dict(sorted((known | bases).items())))


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
        same = next((group for group in groups if _facts_of(group[0]) == _facts_of(session)), None)
        if same is None:
            groups.append(same := [])
        same.append(session)
    return tuple(
        {
            "started": min(str(one.get("started")) for one in group),
            "ended": max((str(one["ended"]) for one in group if one.get("ended")), default=None),
            **_facts_of(group[0]),
        }
        for group in groups
    )


def _facts_of(session: Mapping[str, Any]) -> dict[str, Any]:
    """Versions and machine of a session."""
    return {key: value for key, value in session.items() if key not in ("what", "started", "ended")}
