"""The printed tables of TEPO, by number: four CSV files of one form that tests read rows of."""

from pathlib import Path

from tepo.common.paths import PAPERS, shipped
from tepo.reporting.printed import PaperRow, load_table, printed_row

TABLES = ("table1", "table2", "table3", "table4")


def file(table: str) -> Path:
    return shipped(PAPERS) / "tepo" / f"{table}.csv"


def printed(table: str, method: str, model: str = "Qwen2.5-7B", **keys: str | int) -> PaperRow:
    return printed_row(file(table), method=method, model=model, **keys)


def all_rows() -> list[PaperRow]:
    return [row for table in TABLES for row in load_table(file(table)) if row.kind == "row"]
