"""Pictures of the papers' gains and of the board, from their tables."""

import pandas as pd

from tepo.evaluation.statistics.samples import AVERAGE
from tepo.reporting.charts.forest import differences, ranks
from tepo.reporting.charts.style import Chart
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.reporting.tables.table import Table, verdict_in


def gains_chart(table: Table) -> Chart:
    """What was measured of the papers' gains, with a tick where the printed one is."""
    rows = []
    for block in table.blocks:
        for row in block.rows:
            paper, here, words = row.cells[:3]
            if here.mean is None or paper.mean is None:
                continue
            numbers = f"{format_value(here, block.columns[1], 1)} {format_interval(here, block.columns[1], 1)}".strip()
            said = f"here {numbers}, printed {format_value(paper, block.columns[0], 1)}"
            name = f"{row.label} ({block.title.partition(':')[0]})"
            rows.append(
                {"method": name, "delta": here.mean, "low": here.low, "high": here.high, "said": said}
                | {"verdict": verdict_in(words.text.rpartition(": ")[2]) or "not decided", "seeds": [paper.mean]}
            )
    frame = pd.DataFrame(rows).drop_duplicates("method")
    return differences(frame, ["points above the baseline of its table; tick: as printed"])


def board_chart(table: Table) -> Chart:
    """The board: averages with intervals, coloured by rank."""
    (block,) = table.blocks
    averages = block.column(AVERAGE)
    cells = [(row.label, row.cells[0].text, averages[row.key]) for row in block.rows]
    frame = pd.DataFrame([(label, rank, c.mean, c.low, c.high) for label, rank, c in cells])
    return ranks(frame.set_axis(["method", "rank", "average", "low", "high"], axis=1), "percent right")
