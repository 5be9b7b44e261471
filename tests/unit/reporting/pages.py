"""A small page for the tests: two runs, three token dumps, two figures, and texts that would break careless HTML."""

import base64
import gzip
import json
from dataclasses import replace

from tepo.reporting.figures.curves import RunCurves, svg, training_figure
from tepo.reporting.page import PageFigure, PageStudy, build_page
from tepo.reporting.page.charts import chart_data
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.run_data import PageRun
from tepo.reporting.page.sample_data import RunSamples
from tepo.reporting.tables.table import Table
from tepo.store.stored_responses import Answer, ProblemAnswers
from tepo.store.stored_tokens import TokenDump, parse_dump

NASTY = "</script><b>&amp;\u2028"
LONG = f"GRPO/DAPO {NASTY} beta=0.01, learning_rate=1e-4"


def unpacked(text: str) -> dict:
    """Data as the page holds it."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def dump(step: int, objective: str, *, mask: bool) -> TokenDump:
    """Three responses of a few tokens, the second with a token that looks like markup."""
    responses = []
    for number, tokens in enumerate(
        (["1", "2", "+", "3", "\n", "\\boxed{", "1", "5", "}", "<eos>"], ["so", " ", NASTY, "4"], ["7"])
    ):
        change = [(-0.1, 0.2, -0.3)[place % 3] for place in range(len(tokens))]
        advantage = [1.5 if number == 0 else -0.5] * len(tokens)
        values: dict[str, list] = {
            "advantage": advantage,
            "ratio": [1.01] * len(tokens),
            "entropy": [0.1 * place for place in range(len(tokens))],
            "entropy_change": change,
        }
        if mask:
            values["kl_mask"] = [int(a > 0 and h < 0) for a, h in zip(advantage, change, strict=True)]
        asked = {"prompt": f"12+3={NASTY}", "answer": "15", "reward": 1.0 - number, "finished": number == 0}
        responses.append(asked | {"tokens": tokens, "values": values})
    return parse_dump({"format": 1, "step": step, "objective": objective, "responses": responses})


def samples() -> list[RunSamples]:
    """Two runs that disagree about the first and the last problem, and one that is left out."""

    def problem(benchmark: str, number: int, *given: str) -> ProblemAnswers:
        answers = [Answer(text, text, text == "3", "exact" if text == "3" else "different", 1, True) for text in given]
        return ProblemAnswers(f"{benchmark}-{number}", f"1+{2 + number}=", "3", tuple(answers))

    first = {
        "add3": [problem("add3", 0, "3", "3"), problem("add3", 1, "3", "3")],
        "gcd": [problem("gcd", 0, NASTY, "9"), problem("gcd", 1, "9", "9")],
    }
    second = {
        "add3": [problem("add3", 0, "4", "3"), problem("add3", 1, "3", "3")],
        "gcd": [problem("gcd", 0, "9", "9"), problem("gcd", 1, "3", "3")],
    }
    return [
        RunSamples("run-1", f"{LONG}, seed 0", first),
        RunSamples("run-2", "TEPO, seed 1", second),
        RunSamples("run-3", "TEPO, seed 2", {}),
    ]


def page(table: Table) -> str:
    """The page about the table, with the runs of two of its rows."""

    def run(number: int, label: str, method: str, *dumps: TokenDump) -> PageRun:
        config = {"seed": number - 1, "objective": {"name": method}, "train": {"steps": 4}}
        return PageRun(f"run-{number}", label, method, number - 1, config, {"steps": 4}, list(dumps))

    masked = [dump(step, "tepo", mask=True) for step in (2, 4)]
    runs = [run(1, LONG, "grpo_dapo", dump(4, "grpo_dapo", mask=False)), run(2, "TEPO", "tepo", *masked)]
    rows = [{"training/global_step": step, "critic/score/mean": 0.1 * step} for step in (1, 2, 3)]
    curves = [RunCurves(run.label, run.method, run.seed, rows) for run in runs]
    charts = chart_data(curves)
    wide = [
        replace(one, rows=[{**row, "actor/entropy": 1.0, "actor/grad_norm": 1.0} for row in one.rows]) for one in curves
    ]
    figures = (
        *(PageFigure(name, f"Reward {NASTY}", charts=charts) for name in ("first", "second")),
        PageFigure("wide", f"Only drawn {NASTY}", svg(training_figure(wide))),
    )
    head = PageHead(
        f"Laptop {NASTY}", {"Scale": "laptop", "Version": "tepo 0.1.0"}, ["made up"], ran=f"Trained {NASTY}."
    )
    head = replace(head, command="tepo report panel-e")
    return build_page(head, [PageStudy(_measured_by(table, "run-1"), figures)], runs, samples())


def _measured_by(table: Table, run: str) -> Table:
    """The table with every row linked to a run, and a command for what it lacks."""
    blocks = [
        replace(block, rows=tuple(replace(row, measured=(f"{run}/add3",)) for row in block.rows))
        for block in table.blocks
    ]
    return replace(table, blocks=tuple(blocks), command="tepo ablate panel-e --scale laptop")
