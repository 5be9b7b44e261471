import re
import subprocess
from collections.abc import Callable
from itertools import combinations
from math import exp
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tepo.formula.row import Row, changed_lines, load_row, names
from tepo.formula.typeset import At, Writer, to_latex
from tepo.objectives import load_objective
from tepo.objectives.explain import coefficients, stages, to_text
from tepo.objectives.explain import detached as detached_of
from tepo_cli.main import app

VARIANTS = [  # beside the rows: what none of them has
    load_row("tepo", {"average": "groups", "keep": "finished"}),
    load_row("tepo", {"average": "1/(B*sqrt(T))", "J": "w*A - beta*kl_old", "w": "exp(mean_i(d))**2/(1 + max_i(H))"}),
    load_row("grpo", {"J": "-(w + 1)*A*finished*t/L + my_line2*kl_initial - 2e-9*d", "my_line2": "expm1(H_old - H)"}),
    load_row("grpo_dapo", {"A": "std_r(tokens(R)) - max_others_g(tokens(R)) + (sum_k(R_k) > 0)"}),
    load_row("grpo_dapo", {"J": "A*min(d, 1, -2)/(w/2) - sigmoid(d)*mean_b(responses(T))*(1 - (A - d))*comb(T, 2)"}),
]
ROWS = [*map(load_row, names()), *VARIANTS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_explanation_has_every_line(row: Row) -> None:
    text = re.sub(r" += ", " = ", to_text(row, width=10_000))
    assert [name for name in row.formula.nodes if f"{name} = " not in text] == []


@pytest.mark.parametrize(
    ("name", "rollout", "mini_batch", "loss", "detached"),
    [
        ("tepo_kl_all", "A", "", "w M kl", "A; logp_old"),
        ("entropy_advantage", "a", "", "w A", "a; A; logp_old"),
        ("gspo_token", "A", "", "w", "A; sg(exp(mean_i(d))); sg(d); logp_old"),
        ("steer", "A", "max_b(Om)", "p Om v w", "A; v; logp_old"),
        ("clip_cov", "A", "cov X", "w c", "A; X; logp_old"),
        ("tis_normalized", "A", "mean_b(responses(u))", "u v w", "A; logp_old; logp_sampler"),
    ],
)
def test_where_a_line_is_computed_and_what_is_detached(
    name: str, rollout: str, mini_batch: str, loss: str, detached: str
) -> None:
    formula = load_row(name).formula
    expected = {"rollout": rollout, "mini-batch": mini_batch, "loss": loss}
    assert {at: " ".join(parts) for at, parts in stages(formula).items()} == {k: v for k, v in expected.items() if v}
    assert "; ".join(detached_of(formula)).replace(" (handed over by the rollout)", "") == detached


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("tepo", {}, "J = 1/N Σ_i Σ_t [ min(w*A, clip(w, 1 - low, 1 + high)*A) - beta*M*kl ]"),
        ("grpo_dapo", {"high": 0.3}, "grpo_dapo as shipped (- there, + here)\n  - high = 0.28\n  + high = 0.3"),
        ("tepo", {"M": "A > 0", "kl": "kl_old", "beta": 1}, "the coefficient of ∇KL is -1 for ●, 0 for ○"),
        ("best_of_group", {}, "● A = 1, ○ A = 0\n"),  # which is never negative
        ("dr_grpo", {"high": 0.28}, "grpo_dapo has the same picture: the two differ in A, average, eps\n"),
        ("gdpo", {}, "though A reads R_k, T too and"),
        ("reinforce", {}, "  1 where A = 1, -1 where A = -1, whatever d is\n"),
    ],
)
def test_what_is_said_of_a_row(name: str, changes: dict, said: str) -> None:
    assert said in to_text(load_row(name, changes))


def clipped(low: float, high: float) -> Callable[[float, float], float]:
    return lambda d, a: a * exp(d) * (exp(d) <= 1 + high if a > 0 else exp(d) >= 1 - low)


BY_HAND: dict[str, Callable[[float, float], float]] = {
    "tepo": lambda d, a: clipped(0.2, 0.28)(d, a) - 0.001 * (a > 0) * (1 - exp(-d)),
    "dro": lambda d, a: a - 0.05 * d,
    "kl_cov": lambda d, a: a * exp(d) - (d > 0) + (d < 0),
    "entropy_advantage": lambda d, a: clipped(0.2, 0.28)(d, a) * (1.2 if a > 0 else 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_coefficients_by_hand(name: str) -> None:
    found = coefficients(load_objective(name))
    assert (found.log_ratio[0], found.log_ratio[-1]) == (-1.5, 1.5)
    for values, a in ((found.high, 1), (found.low, -1)):
        expected = [BY_HAND[name](d, a) for d in found.log_ratio]
        off = [d for d, one, other in zip(found.log_ratio, values, expected, strict=True) if abs(one - other) > 1e-9]
        assert not [d for d in off if d], (a, off)  # at d = 0 |d| has no slope


def test_any_two_rows_are_told_apart() -> None:
    """By the lines that differ; where none does, the formulas mean the same."""
    rows = [load_row(name) for name in names()]
    same = {
        (one.name, other.name)
        for one, other in combinations(rows, 2)
        if not changed_lines(one, other) or one.formula.digest == other.formula.digest
    }
    assert same == set()


# LaTeX ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("a - (b - c)*-k + (a + b)", r"a + (b - c)\, k + a + b"),
        ("(a + b)*c/(k*(1 - k))", r"\frac{(a + b)\, c}{k\, (1 - k)}"),
        ("(a*b)**2 + a**(-k)", r"(a\, b)^{2} + a^{-k}"),
        ("a - expm1(b)*c", r"a + (1 - e^{b})\, c"),
        ("exp(logp_old - logp_sampler)", r"\frac{\pi_{\mathrm{old}}(y_{i,t})}{\pi_{\mathrm{sampler}}(y_{i,t})}"),
        ("(a > 0) & ((b < 0) | (c >= k))", r"\mathbf{1}[a > 0 \wedge (b < 0 \vee c \ge k)]"),
        ("where(a <= 0, b, c/k)*2",
         r"2\, \begin{cases} b & \text{if } a \le 0 \\[1ex] \dfrac{c}{k} & \text{else} \end{cases}"),
        ("mean_g(std_g(R))",
         r"\operatorname{mean}_{j \in \mathcal{G}_{i}}(\operatorname{std}_{l \in \mathcal{G}_{j}}(R_{l}))"),
        ("share_t(H_old, R > 0)",
         r"\mathbf{1}[R_{i} > 0]\, \frac{H^{\mathrm{old}}_{i,t}}"
         r"{\operatorname{mean}_{j \in \mathcal{G}_{i}:\, R_{j} > 0}(H^{\mathrm{old}}_{j,t})}"),
        ("3e-9*2e9 - 1e-6", r"3 \cdot 10^{-9} \cdot 2 \cdot 10^{9} - 10^{-6}"),
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


# the command ----------------------------------------------------------------------------------------------------------
def test_commands() -> None:
    def says(*words: str) -> str:
        done = CliRunner().invoke(app, ["explain", *words])
        return done.output + str(done.exception or "")

    said = says("tepo", "objective.beta=1", "average=responses", "--formula", "J=w*A - beta*M*kl", "--vs", "gspo")
    assert "J = 1/B Σ_i 1/T_i Σ_t [ w*A - beta*M*kl ]" in said
    assert says("gspo", "--format", "latex").startswith("% gspo: GSPO 2507.18071")
    assert says("cispo", "high=2", "--vs", "cispo", "--format", "svg").startswith("<svg")
    assert "did you mean 'tepo'?" in says("teppo")
    assert all(f" {name} " in says() for name in ("tepo", "grpo", "vespo_sampler"))
