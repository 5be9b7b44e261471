"""The pages on formulas and on a training loop of one's own, and what `tepo explain` says of a row: code that runs,
tables and readings that are the rows'."""

import contextlib
import io
import re
import shlex
import subprocess
from itertools import combinations
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tepo.formula.row import Row, changed_lines, load_row, names
from tepo.formula.typeset import At, Writer, to_latex
from tepo.objectives import Objective, explain, load_objective
from tepo.objectives.batch import PER_TOKEN
from tepo.objectives.testing.case import TabularCase, make_case
from tepo.reporting.charts.style import digest
from tepo_cli.main import app
from tests.unit.objectives.flat import by_hand, coefficients, loss_of, tensor
from tests.unit.objectives.formula_tables import DOCS, PICTURE, picture, tables, with_tables

PAPER, METHODS = (DOCS / "paper.md").read_text(), (DOCS / "methods.md").read_text()
PAGE = (DOCS / "trainers-use.md").read_text().partition("## Your own training loop\n")[2]


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def padded(case: TabularCase, objective: Objective) -> dict[str, Any]:
    """[B, T] tensors with rubbish beside the responses, as a trainer holds them: those that the row needs."""
    mask = torch.arange(int(case.lengths.max()) + 2) < case.lengths[:, None]
    batch, rubbish = case.batch(objective), torch.full(mask.shape, torch.nan, dtype=torch.float64)
    needed = ("logprobs", "old_logprobs", *(name for name in objective.needs.given if name in PER_TOKEN))
    given = {"rewards": case.rewards, "group_ids": case.group_ids, "max_new_tokens": case.limit}
    tensors = {name: rubbish.masked_scatter(mask, getattr(batch, name)) for name in needed}
    return {"padded": tensors, "mask": mask, "values": case.groups().values, **given}


@pytest.mark.parametrize("name", names())
def test_own_trainer_snippet(name):
    """The printed function, for every row."""
    scope: dict = {}
    exec(snippets(PAGE)[0].replace('load_objective("tepo")', f'load_objective("{name}")'), scope)
    case, objective = make_case(0), load_objective(name)
    result = scope["loss_of"](**padded(case, objective))
    if name not in ("clip_cov", "kl_cov"):  # their draws depend on the uid, which the snippet numbers from 0
        torch.testing.assert_close(result.loss, loss_of(objective, case.batch(objective)).loss)
    assert torch.autograd.grad(result.loss, case.logits)[0].norm() > 0


def test_theory_snippet_prints_what_the_page_shows():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(snippets(PAPER)[0], {})
    assert out.getvalue() == re.findall(r"```text\n(.*?)```", PAPER, re.DOTALL)[0]


def test_readings_are_lines_and_constants():
    """Every reading of the page: in the last cell of a line of its tables, of `tepo` if it does not say of which."""
    readings = 0
    for line in PAPER.splitlines():
        cell = line.rpartition(" | ")[2] if line.startswith("| ") else ""
        row = re.search(r"of `(\w+)`", cell)
        for name, text in re.findall(r"`(\w+)(?:: | = )([^`]+)`", cell):
            like = row[1] if row else "tepo"
            assert text == "k3(d)" or load_objective(like, {name: text}).digest != load_objective(like).digest, text
            readings += 1
    assert readings > 7


def test_the_pages_have_the_tables_and_the_picture_of_the_language():
    for file, made in tables().items():
        page = file.read_text()
        assert with_tables(page, made) == page, "python -m tests.unit.objectives.formula_tables"
    assert all(f"\n| `{name}` |" in METHODS for name in names())
    assert digest(picture()) in PICTURE.read_text(), "python -m tests.unit.objectives.formula_tables"


def changes(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def test_what_the_page_calls_otherwise_can_be_written_so():
    """Each line of the table is a row with settings, whose formula is sound and another one than the row's."""
    section = METHODS.partition("## Under another name\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| .+ \| `(.+?)`[^`|]*(?:`.+`)?[^|`]*\|$", section, re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        name, *words = shlex.split(line)
        row = load_row(name, changes(words))
        assert (row.formula.digest != load_row(name).formula.digest) == bool(words), line


def test_the_distillation_of_prime_rl_is_the_line_of_the_page():
    """`ref_kl_loss_fn`, by hand: what fell by more than 0.2 is dropped, and a squared log-ratio is added."""
    (line,) = re.findall(r"^\| prime-rl `opd` \| `distillation (.+?)` \|$", METHODS, re.MULTILINE)
    objective = load_objective("distillation", changes(shlex.split(line)))
    sampler, teacher = tensor(-1, -0.5, -2, -0.7), tensor(-0.5, -1, -1.5, -3)
    batch = by_hand([1.3, 0.9, 0.4, 1.1], [0.0] * 4, sampler_logprobs=sampler, teacher_logprobs=teacher)
    now = batch.logprobs.detach()
    stays = now.exp() - sampler.exp() >= -0.2
    assert stays.tolist() == [True, False, True, True]
    slopes = stays * (now - sampler).exp() * (teacher - now) - 2e-3 * (now - sampler)
    torch.testing.assert_close(coefficients(objective, batch), slopes, rtol=0, atol=1e-12)


# what is said of a row ------------------------------------------------------------------------------------------------
VARIANTS = [  # beside the rows: what none of them has
    load_row("tepo", {"average": "1/(B*sqrt(T))", "J": "w*A - beta*kl_old", "w": "exp(mean_i(d))**2/(1 + max_i(H))"}),
    load_row("grpo", {"J": "-(w + 1)*A*finished*t/L + my_line2*kl_initial - 2e-9*d", "my_line2": "expm1(H_old - H)"}),
    load_row("grpo_dapo", {"A": "std_r(tokens(R)) - max_others_g(tokens(R)) + (sum_k(R_k) > 0)", "average": "groups"}),
]
ROWS = [*map(load_row, names()), *VARIANTS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_explanation_has_every_line(row: Row) -> None:
    text = re.sub(r" += ", " = ", explain.to_text(row, width=10_000))
    assert [name for name in row.formula.nodes if f"{name} = " not in text] == []


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("grpo_dapo", {"high": 0.3}, "grpo_dapo as shipped (- there, + here)\n  - high = 0.28\n  + high = 0.3"),
        ("tepo", {"M": "A > 0", "kl": "kl_old", "beta": 1}, "the coefficient of ∇KL is -1 for ●, 0 for ○"),
        ("dr_grpo", {"high": 0.28}, "grpo_dapo has the same picture: the two differ in A, average, eps\n"),
    ],
)
def test_what_is_said_of_a_row(name: str, changes: dict, said: str) -> None:
    assert said in explain.to_text(load_row(name, changes))


def test_coefficients_by_hand() -> None:
    found = explain.coefficients(load_objective("tepo"))
    assert (found.log_ratio[0], found.log_ratio[-1]) == (-1.5, 1.5)
    low = [-exp(d) * (exp(d) >= 0.8) for d in found.log_ratio]
    high = [exp(d) * (exp(d) <= 1.28) - 0.001 * (1 - exp(-d)) for d in found.log_ratio]
    assert (list(found.low), list(found.high)) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_any_two_rows_are_told_apart() -> None:
    """By the lines that differ; where none does, the formulas mean the same."""
    for one, other in combinations(map(load_row, names()), 2):
        assert changed_lines(one, other), (one.name, other.name)
        assert one.formula.digest != other.formula.digest, (one.name, other.name)


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("a - (b - c)*-k + (a + b)*c/(k*(1 - k))", r"a + (b - c)\, k + \frac{(a + b)\, c}{k\, (1 - k)}"),
        ("(a*b)**2 + a**(-k) - expm1(b)*3e-9", r"(a\, b)^{2} + a^{-k} + (1 - e^{b}) \cdot 3 \cdot 10^{-9}"),
        ("where((a > 0) & (b < 0), b, c/k)",
         r"\begin{cases} b & \text{if } a > 0 \wedge b < 0 \\[1ex] \dfrac{c}{k} & \text{else} \end{cases}"),
        ("share_t(H_old, R > 0)",
         r"\mathbf{1}[R_{i} > 0]\, \frac{H^{\mathrm{old}}_{i,t}}"
         r"{\operatorname{mean}_{j \in \mathcal{G}_{i}:\, R_{j} > 0}(H^{\mathrm{old}}_{j,t})}"),
    ],
)  # fmt: skip
def test_latex_by_hand(text: str, latex: str) -> None:
    assert Writer({}).expression(text, At("i", "t")) == latex


@pytest.mark.latex
def test_every_formula_compiles(tmp_path: Path) -> None:
    shown = [f"\\texttt{{{row.name}}} ".replace("_", r"\_") + to_latex(row) for row in ROWS]
    head = r"\documentclass{article}\usepackage{amsmath}\usepackage[margin=2cm]{geometry}\begin{document}"
    (tmp_path / "rows.tex").write_text("\n\n".join([head, *shown, r"\end{document}"]))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "rows.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout


def test_commands() -> None:
    def says(*words: str) -> str:
        done = CliRunner().invoke(app, ["explain", *words])
        return done.output + str(done.exception or "")

    said = says("tepo", "objective.beta=1", "average=responses", "--formula", "J=w*A - beta*M*kl", "--vs", "gspo")
    assert "J = 1/B Σ_i 1/T_i Σ_t [ w*A - beta*M*kl ]" in said
    assert says("gspo", "--format", "latex").startswith("% gspo: GSPO 2507.18071")
    assert says("cispo", "high=2", "--vs", "cispo", "--format", "svg").startswith("<svg")
    assert "did you mean 'tepo'?" in says("teppo")
