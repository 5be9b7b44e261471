"""Several studies planned together, so that the rows they share meet in one run. Imports nothing that renders."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.text import listed
from tepo.problems.benchmarks import check_measurable
from tepo.store.find_run import check_place
from tepo.studies.claims import claim_files, load_claims, study_of, written_names
from tepo.studies.plan import Unit, make_plan, reporting_seeds, scale_of
from tepo.studies.store_check import check_store
from tepo.studies.study import CLAIMS, USUAL, Study, file_stem, load_study, study_names
from tepo.studies.tuning_result import with_chosen

Planned = Sequence[tuple[Study, list[Unit]]]


def claims_apart(planned: Planned) -> tuple[Planned, Planned]:
    """The registered claims of a plan, and its other studies."""
    parts = {flag: [part for part in planned if part[0].registered is flag] for flag in (True, False)}
    return parts[True], parts[False]


def scales_text(planned: Planned) -> str:
    """The scales of a plan in words."""
    return listed(dict.fromkeys(scale_of(units) for _, units in planned))


@paths.one_look()
def plan_all(
    names: Iterable[str],
    scale: str | None,
    *,
    store: Path,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
) -> list[tuple[Study, list[Unit]]]:
    """Each study (a table of panels: each panel) with its units; of one that tunes, also those that report the rows
    whose settings are chosen. scale: None takes each study at its own (`Study.own_scale`), and the claims of the usual
    one. Raises UserError where two studies mean different runs by one label, or where the store
    holds half a run or one of another version."""
    studies: list[Study] = []
    for name in names:
        if name == CLAIMS or file_stem(name) not in study_names():  # all claims of the scale, or one of them
            files = [key for key, path in claim_files().items() if name in (CLAIMS, *written_names(path))]
            if files:
                claims = load_claims((scale or USUAL) if name == CLAIMS else None, files).claims
                studies += [study_of(claim) for claim in claims if name in (CLAIMS, claim.name)]
                continue
        study = load_study(name)
        panels = [load_study(panel) for panel in study.panels]
        for panel in panels:
            if (own_scale := panel.own_scale(scale)) in panel.scales and panel.tune_at(own_scale):
                what = f"{panel.name} tunes its rows, so it cannot be a panel of {study.name}"
                raise UserError(what, where="panels", fix=f"ask for it alone: tepo ablate {panel.name}")
        studies += panels or [study]
    return plan_studies(studies, scale, store=store, seeds=seeds, overrides=overrides)


@paths.one_look()
def plan_studies(
    studies: Iterable[Study],
    scale: str | None,
    *,
    store: Path,
    seeds: Sequence[int] | None = None,
    overrides: Sequence[str] = (),
) -> list[tuple[Study, list[Unit]]]:
    """`plan_all` of studies that are loaded, none of them a table of panels. Seeds and overrides are not for those of
    registered claims."""
    check_place(store)
    studies = list(studies)
    for study in studies:
        if study.panels:
            what = f"{study.name} is a table of panels and cannot be a panel of another"
            raise UserError(what, where="panels", fix="name its panels")
    planned: list[tuple[Study, list[Unit]]] = []
    for study in studies:
        settings = (None, ()) if study.registered else (seeds, overrides)
        own_scale = study.own_scale(scale)
        units = make_plan(study, own_scale, store=store, seeds=settings[0], overrides=settings[1])
        if tune := study.tune_at(own_scale):
            units = with_chosen(units, tune, reporting_seeds(study, own_scale, seeds))
        for config in {tuple(unit.config.data.benchmarks): unit.config for unit in units}.values():
            check_measurable(config.data)
        planned.append((study, units))
    first: dict[tuple[str, str, str, int], tuple[Study, Unit]] = {}
    for study, units in planned:  # on one page a label stands for one run of a scale
        for unit in units:
            other, other_unit = first.setdefault((scale_of(units), unit.label, unit.model, unit.seed), (study, unit))
            if other_unit.id != unit.id:
                differing = sorted(set(other_unit.overrides) ^ set(unit.overrides))
                what = f"the row {unit.label!r} is one run in {other.name} and another in {study.name}"
                fix = "give one of the rows another label, or make them the same; each study can be asked for alone"
                where = f"{study.name} beside {other.name}"
                raise UserError(f"{what} (they differ in {', '.join(differing)})", where=where, fix=fix)
    check_store(unit for _, units in planned for unit in units)
    return planned
