"""A small page for the tests: two runs, three token dumps, charts, and texts that would break careless HTML."""

import base64
import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from tepo.formula.row import load_row
from tepo.reporting.charts.curves import STEP, curve_frame, ends, training_curves
from tepo.reporting.charts.forest import differences
from tepo.reporting.charts.style import Looks, NamedChart
from tepo.reporting.charts.sweeps import sweep_map
from tepo.reporting.page import PageContent, PageHead, PageStudy, build_page
from tepo.reporting.page.equations import methods
from tepo.reporting.page.page_data import RunSamples
from tepo.reporting.page.runs import PageRun
from tepo.reporting.tables.table import Table
from tepo.store.samples_file import GradedResponse, ProblemAnswers
from tepo.store.stored_tokens import TokenDump, TokenResponse

NASTY = """</script><b title='"'>&amp;\\"""
LONG = f"GRPO/DAPO {NASTY} beta=0.01, learning_rate=1e-4"
LOOKS: Looks = {LONG: ("grpo_dapo", None), "TEPO": ("tepo", None)}


def unpacked(text: str) -> Any:
    """Data as the page holds it."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def dump(step: int, *, mask: bool = True) -> TokenDump:
    """Three responses of a few tokens, the second with a token that looks like markup."""
    said = (["1", "2", "+", "3", "\n", "\\boxed{", "1", "5", "}", "<eos>"], ["so", " ", NASTY, "4"], ["7"])
    responses = []
    for number, tokens in enumerate(said):
        change, advantage = [(-0.1, 0.2, -0.3)[at % 3] for at in range(len(tokens))], 1.5 if number == 0 else -0.5
        values = {"advantage": [advantage] * len(tokens), "entropy": [0.1 * at for at in range(len(tokens))]}
        values |= {"entropy_change": change}
        values |= {"kl_mask": [float(advantage > 0 and one < 0) for one in change]} if mask else {}
        told = (f"12+3={NASTY}", "15", 1.0 - number, number == 0, 0)
        responses.append(TokenResponse(*told, tokens, values))
    return TokenDump(step, "tepo", tuple(responses))


def samples() -> list[RunSamples]:
    """Two runs that disagree about the first and the last problem, and one that is left out."""

    def problems(name: str, *given: Sequence[str]) -> list[ProblemAnswers]:
        answers = [
            [GradedResponse(one, one, one == "3", "" if one == "3" else "different", 1, True) for one in own]
            for own in given
        ]
        return [ProblemAnswers(f"{name}-{at}", f"1+{2 + at}=", "3", tuple(own)) for at, own in enumerate(answers)]

    first = {"add3": problems("add3", "33", "33"), "gcd": problems("gcd", [NASTY, "9"], "99")}
    second = {"add3": problems("add3", "49", "33"), "gcd": problems("gcd", "99", "33")}
    return [RunSamples("run-1", LONG, first), RunSamples("run-2", "TEPO", second), RunSamples("run-3", "left out", {})]


def metrics() -> pd.DataFrame:
    """Metrics of made-up runs, of which those of the second seed end a step early."""
    names = ("method", "seed", "run", "ended", STEP, "critic/score/mean", "actor/entropy", "actor/grad_norm")
    rows = [
        (label, seed, f"{label}-{seed}", seed > 0, step, 0.5 + 0.4 * math.sin(seed + step**2), 1 / step, 0.1 + seed)
        for label in LOOKS
        for seed in range(2)
        for step in range(1, 5 - seed)
    ]
    return pd.DataFrame(rows, columns=names)


def curves_chart(name: str) -> NamedChart:
    frame = curve_frame(metrics())
    return NamedChart(name, "curves", f"curves {NASTY}", training_curves(frame, LOOKS), ends(frame))


def charts() -> list[NamedChart]:
    """A comparison, curves and a map, all with the same two methods."""
    line = {"low": math.nan, "high": math.nan, "said": f"+3.0 {NASTY}"}
    rows = [{"method": LONG, "delta": -2.0, "verdict": "worse"}, {"method": "TEPO", "delta": 3.0, "verdict": "better"}]
    frame = pd.DataFrame([row | line for row in rows])
    cells = frame.assign(value="1", mean=50.0, interval="±1", ended=0, runs="0: run-1", lost=1.0)
    return [
        NamedChart("panel_e-differences", "differences", f"differences {NASTY}", differences(frame, "points")),
        curves_chart("panel_e-curves"),
        curves_chart("panel_e-curves-2"),  # folded
        NamedChart("panel_e-map", "map", f"map {NASTY}", sweep_map(cells, "rate")),
    ]


def page(table: Table) -> str:
    """The page about the table, with the runs of two of its rows."""
    said = {name: f"{name} {NASTY}" for name in ("title", "made", "asked", "ran", "cost", "caveat")}
    sources = [(f"source {NASTY}", ""), (f"linked {NASTY}", f"https://huggingface.co/{NASTY}")]
    head = PageHead(**said, repeat=[f"repeat {NASTY}"], notes=[f"note {NASTY}"], sources=sources)
    runs, dumps = [], ([dump(4, mask=False)], [dump(1), dump(4)])
    for seed, (label, (method, _)) in enumerate(LOOKS.items()):
        config = {"seed": seed, "objective": {"name": method}, "model": {"name": NASTY}}
        more = (f"outcome {NASTY}", dumps[seed], [{"tepo": NASTY}], f"command {NASTY}")
        runs.append(PageRun(f"run-{seed + 1}", label, method, seed, config, *more))
    first, *others = table.blocks
    *rows, last = (replace(row, measured=("run-1/add3",)) for row in first.rows)  # they lead to the run
    blocks = (replace(first, rows=(*rows, replace(last, label=f"row {NASTY}"))), *others)
    shown = replace(table, blocks=blocks, notes=(*table.notes, f"below {NASTY}"), command=f"lacks {NASTY}")
    drawn, known = charts(), methods([(label, look, load_row(name)) for label, (name, look) in LOOKS.items()])
    return build_page(PageContent(head, [PageStudy(shown, drawn[1:])], runs, samples(), drawn[:1], known))
