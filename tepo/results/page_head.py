"""What the page says first: title, what ran, when, with which versions and at what cost."""

from collections.abc import Iterable, Sequence

from tepo.common import paths
from tepo.reporting.page.head import PageHead
from tepo.studies.plan import Unit, unique
from tepo.studies.plan_studies import Planned
from tepo.studies.study import Study

_PAPERS = "TEPO and GTPO / GRPO-S"
_FEW = 3  # commits that are named


def head_of(planned: Planned, scale: str, sentences: Sequence[str] = ()) -> PageHead:
    """Title and notes of the study, or of all; the facts are of the runs that were made."""
    studies = [study for study, _ in planned if not study.registered]
    units = unique(unit for _, part in planned for unit in part)
    notes = dict.fromkeys(note for study in studies for note in study.notes)
    return PageHead(f"{_title(planned)}, {scale} scale", _facts(units, scale), tuple(notes), sentences)


def _title(planned: Planned) -> str:
    """Of one or two studies theirs; of more a name for all."""
    titles = list(dict.fromkeys("Registered claims" if study.registered else study.title for study, _ in planned))
    if len(titles) <= 2:
        return "; ".join(titles)
    return _PAPERS if all(study.registered or _is_shipped(study) for study, _ in planned) else f"{len(titles)} studies"


def _is_shipped(study: Study) -> bool:
    return any((paths.shipped(kind) / f"{study.name}.yaml").is_file() for kind in ("experiments", "ablations"))


def _facts(units: Sequence[Unit], scale: str) -> dict[str, str]:
    trained = [unit for unit in units if unit.row.objective is not None]
    sessions = [session for unit in units for session in unit.run.sessions(unit.benchmarks)]
    days = sorted({str(session["started"])[:10] for session in sessions if session.get("started")})
    commits = dict.fromkeys(str(session["commit"])[:7] for session in sessions if session.get("commit"))
    versions = dict.fromkeys(f"tepo {session['tepo']}" for session in sessions if session.get("tepo"))
    known = list(commits) if len(commits) <= _FEW else [f"{len(commits)} commits"]
    seconds = sum(cost.cpu_s for unit in units for cost in unit.run.costs())
    facts = {
        "Scale": scale,
        "Model": ", ".join(dict.fromkeys(unit.config.model.name for unit in units)),
        "Data": ", ".join(dict.fromkeys(unit.config.data.name for unit in units)),
        "Runs": f"{sum(unit.done() for unit in units)} of {len(units)} measured",
        "Seeds": ranges(unit.seed for unit in trained),
        "Steps": ranges(unit.config.train.steps for unit in trained),
        "Ran": " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "",
        "Version": ", ".join([*versions, *known]),
        "Cost": f"{seconds / 3600:,.2f} CPU hours" if seconds else "",
    }
    return {name: text for name, text in facts.items() if text}


def ranges(numbers: Iterable[int]) -> str:
    """`0, 1` and `100 to 107`: three or more in a row as a range."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)
