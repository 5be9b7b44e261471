"""docs/board.md and docs/gains.md, their tables and pictures from the records:

    python -m tests.unit.result_pages

writes what stands between the marks, and the pictures beside the pages.
"""

import contextlib
import io
import re
from pathlib import Path

from tepo.analysis.charts import board_chart, gains_chart
from tepo.reporting.charts.style import svg
from tepo.reporting.tables.render import as_text
from tepo_cli.cli_options import Asked
from tepo_cli.study_outputs import board_of, gains

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"(<!-- `tepo [^`]*` prints this -->\n).*?(\n<!-- until here -->)", re.DOTALL)


def pages(store: Path) -> dict[str, str]:
    """Files of docs/ as they should be. store: a folder without runs."""
    with contextlib.redirect_stderr(io.StringIO()):
        tables = {"board": board_of((), store), "gains": gains(Asked(store=store), records=True)}
    charts = {"board": board_chart, "gains": gains_chart}
    texts = {}
    for name, table in tables.items():
        page, text = (DOCS / f"{name}.md").read_text(encoding="utf-8"), as_text(table, "markdown").strip()
        texts[f"{name}.md"] = BLOCK.sub(lambda match, text=text: f"{match[1]}\n{text}\n{match[2]}", page)
        texts[f"{name}.svg"] = svg(charts[name](table))
    return texts


if __name__ == "__main__":
    for file, text in pages(Path("/nowhere")).items():
        (DOCS / file).write_text(text, encoding="utf-8")
