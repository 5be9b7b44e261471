"""Every recorded table and every claim as text, by the commands that people type."""

from collections.abc import Iterator
from pathlib import Path

from tepo.studies.study import load_study, study_names
from tests.support.commands import tepo

SCALES = ("laptop", "small_lm", "smollm2")  # those with records


def recorded_tables() -> Iterator[tuple[str, str]]:
    """Name and scale of each table that records may fill, of the claims one a scale."""
    for name in study_names():
        study = load_study(name)
        yield from ((name, scale) for scale in SCALES if scale in study.scales)
    yield from (("claims", scale) for scale in SCALES)


def write_texts(folder: Path) -> int:
    """Write `NAME-SCALE.md` for each table. Returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = list(recorded_tables())
    for name, scale in tables:
        words = ("--scale", scale, "--records", "--format", "markdown", "--store", str(folder / "none"))
        (folder / f"{name}-{scale}.md").write_text(tepo("table", name, *words).stdout)
    return len(tables)
