"""Check whether averages, differences and ranks of the TEPO paper follow from its own columns; the output is in
`notes/paper-arithmetic.md`. The "Avg." is the mean over samples, not over columns; only the size of OMNI-MATH is not
known, and is fitted.
"""

from tepo.common.paths import PAPERS, shipped
from tepo.reporting.printed import PaperRow, load_table, printed_row

TABLES = {f"table{number}": shipped(PAPERS) / f"tepo/table{number}.csv" for number in (1, 2, 3, 4)}

SAMPLES = {  # problems x samples a problem
    "AIME24": 30 * 32,
    "AIME25": 30 * 32,
    "AMC": 83 * 32,
    "MATH-500": 500,
    "OMNI-MATH": 2785,  # the middle of the sizes, 2773 to 2789, under which most averages follow
    "OlympiadBench": 675,
    "Minerva": 272,
}
TOLERANCE = 0.03  # points: seven cells cut to two decimals and a fitted size move an average by less
ROUNDING = 0.011  # the largest difference of two cells with two decimals, one of them cut instead of rounded

QWEN_7B, QWEN_14B = "Qwen2.5-7B", "Qwen3-14B"
LLAMA, MISTRAL = "DeepSeek-R1-Distill-Llama-8B", "Mistral-7B-Instruct-v0.2"
DISTILL = "DeepSeek-R1-Distill-Qwen-7B"
GAINS = [  # of the text: table, model, a method, the one it is compared with, points
    ("table1", QWEN_7B, "tepo", "grpo_dapo", 1.74),
    ("table1", QWEN_7B, "tepo", "gpg", 0.68),
    ("table1", QWEN_14B, "tepo", "grpo_dapo", 2.51),
    ("table1", QWEN_14B, "tepo", "gspo", 1.74),
    ("table2", LLAMA, "tepo", "grpo_dapo", 0.53),
    ("table2", MISTRAL, "tepo", "grpo_dapo", 0.28),
    ("table2", DISTILL, "tepo", "grpo_dapo", 2.61),
    ("table3", QWEN_7B, "tepo_kl_all_beta_0.1", "tepo_no_kl", -4.6),
    ("table3", QWEN_7B, "tepo_max_entropy", "tepo_no_kl", -0.56),
    ("table3", QWEN_7B, "tepo_min_entropy", "tepo_no_kl", -1.53),
]
RANKS = [  # of the text: TEPO is among the first of its model on these benchmarks
    ("table1", QWEN_7B, 1, ("MATH-500", "OMNI-MATH", "AMC", "AIME25", "OlympiadBench")),
    ("table1", QWEN_7B, 3, ("AIME24", "Minerva")),
    ("table1", QWEN_14B, 1, tuple(SAMPLES)),
    ("table2", LLAMA, 1, ("AIME25", "MATH-500", "OMNI-MATH", "OlympiadBench", "Minerva")),
    ("table2", MISTRAL, 1, ("AMC", "MATH-500", "OMNI-MATH", "Minerva")),
    ("table2", DISTILL, 1, tuple(SAMPLES)),
]


def average(row: PaperRow) -> float:
    """The mean over samples in percent; a dash counts as 0, which is what the averages of Mistral imply."""
    return sum(size * (row.scores[name] or 0.0) for name, size in SAMPLES.items()) / sum(SAMPLES.values())


def named(row: PaperRow) -> str:
    """The row as a line of text has it."""
    return row.label.removeprefix("w. ").split(" (leads")[0]


def rows_of(table: str, model: str) -> list[PaperRow]:
    """The measured rows of one model."""
    return [row for row in load_table(TABLES[table]) if row.kind == "row" and row.model == model]


def all_rows(kind: str = "row") -> list[tuple[str, PaperRow]]:
    """Rows of one kind of all four tables with the table, in the paper's order; some are printed in several."""
    return [(table, row) for table, path in TABLES.items() for row in load_table(path) if row.kind == kind]


def averages() -> None:
    """Print the complete rows, each once however many tables have it, whose Avg. does not follow from its columns."""
    rows = {
        (row.model, row.average, *row.scores.values()): (table, row)
        for table, row in reversed(all_rows())  # the first that has it is named
        if row.complete and any(row.scores.values())
    }
    wrong = [pair for pair in reversed(rows.values()) if abs(average(pair[1]) - pair[1].average) > TOLERANCE]
    print(f"{len(rows) - len(wrong)} of {len(rows)} averages follow from their columns within {TOLERANCE}, but not")
    for table, row in wrong:
        printed = f"{row.average:.2f} printed, {average(row):.2f} by the columns"
        print(f"  Table {table[-1]}{row.panel} {row.model}, {named(row)}: {printed}")


def differences() -> None:
    """Print the differences of the tables and of the text that do not follow."""
    print('Of Table 1\'s rows "Δ vs GRPO/DAPO"')
    for _, delta in all_rows("delta_vs_grpo_dapo"):
        tepo, grpo = (printed_row(TABLES["table1"], model=delta.model, method=name) for name in ("tepo", "grpo_dapo"))
        for name, printed in delta.scores.items():
            found = (tepo.scores[name] or 0.0) - (grpo.scores[name] or 0.0)
            if printed is not None and abs(found - printed) > ROUNDING:
                print(f"  {delta.model}, {name}: {printed:+.2f} printed, {found:+.2f} by the rows")
    print("Of the gains in the text")
    for table, model, method, against, points in GAINS:
        a, b = (printed_row(TABLES[table], model=model, method=name) for name in (method, against))
        printed, found = a.average - b.average, average(a) - average(b)
        if abs(printed - points) > ROUNDING or abs(found - points) > 2 * TOLERANCE:
            by = f"{printed:+.2f} by the printed averages, {found:+.2f} by the columns"
            print(f"  {model}, {named(a)} against {named(b)}: {points:+.2f} in the text, {by}")


def ranks() -> None:
    """Print where TEPO does not have the rank that the text gives it; a tie for the first rank is not the first."""
    print("Of TEPO's ranks in the text")
    for table, model, claimed, names in RANKS:
        for name in names:
            mine = next(row for row in rows_of(table, model) if row.method == "tepo").scores[name] or 0.0
            others = {named(row): row.scores[name] or 0.0 for row in rows_of(table, model) if row.method != "tepo"}
            rank, tied = 1 + sum(score > mine for score in others.values()), [k for k in others if others[k] == mine]
            if rank > claimed or (claimed == 1 and tied):
                by = f"{rank} by the table{f', tied with {tied[0]}' if tied else ''}"
                print(f"  {model}, {name}: rank {claimed} in the text, {by}")
    for table, model in {(table, model): None for table, model, *_ in (*RANKS, *GAINS)}:
        best = max(rows_of(table, model), key=average)
        if best.method != "tepo":
            print(f"  {model}, Avg. by the columns: {named(best)} is first in Table {table[-1]}")


if __name__ == "__main__":
    averages()
    differences()
    ranks()
