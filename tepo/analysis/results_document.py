"""Results of several studies as one Markdown document: a first screen with its figures, then all tables."""

from collections.abc import Iterable
from pathlib import Path

from tepo.analysis.claims_table import NAME as CLAIMS
from tepo.analysis.claims_table import summary
from tepo.analysis.page import OWN, Rendered, opening_graphic
from tepo.common.files import write_atomic
from tepo.common.text import counted
from tepo.launch.run_units import spent
from tepo.reporting.figures.curves import svg
from tepo.reporting.page import PageFigure, PageStudy
from tepo.reporting.page.map_drawing import map_figure
from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.renderers.markdown import escaped
from tepo.store.facts import Facts
from tepo.studies.plan import unique
from tepo.studies.plan_studies import Planned


def write_results(path: Path, rendered: Rendered, planned: Planned, facts: Facts, scale: str, command: str) -> None:
    """Write the document, and its pictures as SVG beside it: `NAME-opening.svg`, `NAME-STUDY.svg`. command: the one
    behind it, which the document names."""
    claims = [study for study in rendered.studies if study.table.name == CLAIMS]
    others = [study for study in rendered.studies if study.table.name != CLAIMS]
    units = [unit for _, units in planned for unit in units]
    distinct = unique(units)
    said = [(study.table.title, study.finding) for study in others]
    found = [f"- **{escaped(title)}.** {escaped(text)}." for title, text in said if text]
    done = sum(facts.of(unit.id).done for unit in distinct)
    costs = {unit.id: facts.of(unit.id).costs for unit in distinct}
    opening = _beside(path, "opening")
    pictures = {opening: opening_graphic(rendered)}
    pictures |= {_beside(path, f"{one.name}-map"): map_figure(one) for study in others for one in study.maps}
    parts = [
        f"# {'Claims and their studies' if claims else 'Tables'} at {scale} scale",
        f"Written by `{command}`.",
        f"![{escaped(rendered.head.title)}]({opening.name})",
        f"> {' '.join(filter(None, (rendered.head.ran, rendered.head.scope)))}",
        *(part for study in claims for part in _first_screen(study)),
        *(["## Each study in a sentence", "\n".join(found)] if found else []),
        "## Appendix: all tables",
        *(part for study in rendered.studies for part in _tables(path, study)),
        f"## Cost\n\n{done} of {counted(len(distinct), 'run')} measured. {spent(costs)}.\n",
    ]
    for study in rendered.studies:
        for figure in _own(study):
            write_atomic(_file(path, figure), figure.svg, "--results FILE")
    for file, drawn in pictures.items():
        write_atomic(file, svg(drawn), "--results FILE")
    write_atomic(path, "\n\n".join(parts), "--results FILE")


def _first_screen(claims: PageStudy) -> Iterable[str]:
    yield "## What was claimed before it was run"
    yield summary(claims.table)
    yield "What each claim compares, on which seeds, and since when it is registered stands in the appendix."


def _tables(path: Path, study: PageStudy) -> Iterable[str]:
    title, _, rest = as_text(study.table, "markdown").strip().partition("\n")
    yield f"#{title}"  # below the appendix
    images = [(one.title, _beside(path, f"{one.name}-map")) for one in study.maps]
    images += [(figure.caption, _file(path, figure)) for figure in _own(study)]
    yield from (f"![{escaped(title)}]({file.name})" for title, file in images)
    yield rest.strip()


def _own(study: PageStudy) -> list[PageFigure]:
    """Figures of the study itself, not of its runs."""
    return [figure for figure in study.figures if figure.name.endswith(OWN)]


def _file(path: Path, figure: PageFigure) -> Path:
    return _beside(path, figure.name.removesuffix(OWN))


def _beside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.stem}-{name}.svg")
