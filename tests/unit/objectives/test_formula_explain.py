import re
import shlex
import subprocess
from collections.abc import Callable
from itertools import combinations
from math import exp
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.formula.row import IDEAS, Row, changed_lines, load_row, names
from tepo.formula.typeset import At, Writer, read_constants, to_latex
from tepo.objectives import load_objective
from tepo.objectives.explain import coefficients, stages, to_text
from tepo.objectives.explain import detached as detached_of
from tepo.reporting.charts.style import digest
from tepo_cli.main import app
from tests.unit.objectives.flat import by_hand, tensor
from tests.unit.objectives.flat import coefficients as by_token
from tests.unit.objectives.formula_tables import DOCS, PICTURE, picture, tables, with_tables

PAGE = DOCS / "formula.md"
VARIANTS = [  # beside the rows: what none of them has
    load_row("tepo", {"average": "groups", "keep": "finished"}),
    load_row("tepo", {"average": "1/(B*sqrt(T))", "J": "w*A - beta*kl_old", "w": "exp(mean_i(d))**2/(1 + max_i(H))"}),
    load_row("grpo", {"J": "-(w + 1)*A*finished*t/L + my_line2*kl_initial - 2e-9*d", "my_line2": "expm1(H_old - H)"}),
    load_row("grpo_dapo", {"A": "std_r(tokens(R)) - max_others_g(tokens(R)) + (sum_k(R_k) > 0)"}),
    load_row("grpo_dapo", {"J": "A*min(d, 1, -2)/(w/2) - sigmoid(d)*mean_b(responses(T))*(1 - (A - d))*comb(T, 2)"}),
]
ROWS = [*map(load_row, names()), *VARIANTS]


# text -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_explanation_has_every_line(row: Row) -> None:
    text = re.sub(r" += ", " = ", to_text(row, width=10_000))
    assert [name for name in row.formula.nodes if f"{name} = " not in text] == []


@pytest.mark.parametrize("row", VARIANTS)
def test_a_narrow_explanation_loses_no_word(row: Row) -> None:
    narrow, wide = (to_text(row, load_row("gspo"), width) for width in (80, 10_000))
    assert max(map(len, narrow.splitlines())) <= 80
    assert set(wide.split()) == set(narrow.split())


@pytest.mark.parametrize(
    ("name", "rollout", "mini_batch", "loss", "detached"),
    [
        ("tepo_kl_all", "A", "", "w M kl", "A; logp_old"),
        ("gtpo_clipped", "P u A", "", "w", "A; logp_old"),
        ("entropy_advantage", "a", "", "w A", "a; A; logp_old"),
        ("gspo_token", "A", "", "w", "A; sg(exp(mean_i(d))); sg(d); logp_old"),
        ("steer", "A", "max_b(Om)", "p Om v w", "A; v; logp_old"),
        ("clip_cov", "A", "cov X", "w c", "A; X; logp_old"),
        ("top_entropy_v2", "A", "K mean_b(K)", "v w", "A; v; logp_old"),
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


SAID: list[tuple[str, dict, str]] = [
    ("tepo", {}, "J = 1/N Σ_i Σ_t [ min(w*A, clip(w, 1 - low, 1 + high)*A) - beta*M*kl ]"),
    ("tepo", {}, "Departs from its paper\n  A1: "),
    ("tepo", {}, "entropies of the current policy, entropies of the policy that sampled\n"),
    ("tepo", {}, "+ M: (A > 0) & (dH < -tol)\n"),
    ("reinforce", {"J": "(R - mean_g(R))*logp"}, "Computed once a rollout\n  R - mean_g(R)\n"),
    ("reinforce", {"J": "(R - mean_g(R))*logp"}, "● R - mean_g(R) = 1"),
    ("grpo_dapo", {}, "log-probs and old log-probs alone\n\nNo difference from grpo_dapo"),
    ("tepo", {"average": "groups", "keep": "finished"}, "Left out of the sums"),
    ("tepo", {"average": "groups"}, "  N_g        tokens of the group in the mini-batch"),
    ("grpo_dapo", {"high": 0.3}, "grpo_dapo as shipped (- there, + here)\n  - high = 0.28\n  + high = 0.3"),
    ("tepo_min_entropy", {}, "beside it, the coefficient of ∇H is -0.001"),
    ("tepo", {"M": "A > 0", "kl": "kl_old", "beta": 1}, "the coefficient of ∇KL is -1 for ●, 0 for ○"),
    ("best_of_group", {}, "● A = 1, ○ A = 0\n"),  # which is never negative
    ("best_of_group", {"A": "-max(R - max_others_g(R), 0)"}, "● A = 0, ○ A = -1\n"),
    ("grpo_dapo", {"A": "where(T >= L, -1, 0) + max(R - mean_g(R), 0)"}, "● A = 1, ○ A = -1\n"),
    ("dr_grpo", {"high": 0.28}, "grpo_dapo has the same picture: the two differ in A, average, eps\n"),
    ("gdpo", {}, "though A reads R_k, T too and"),
    ("gtpo_clipped", {}, "though A reads H_old, T too and"),
    ("grpo_dapo", {"A": "R - mean_g(R) - 0.1*(1 - finished)"}, "though A reads finished too and"),
    ("grpo_dapo", {"A": "R - mean_g(R) - 0.1*(T - mean_g(T))/L"}, "though A reads T too and"),
    ("reinforce_pp", {}, "though A would not be 0 in them"),
    ("reinforce", {}, "  1 where A = 1, -1 where A = -1, whatever d is\n"),
    ("reinforce", {"J": "((R > 0) & (mean_g(R) < 1))*exp(d)"}, " = 0"),  # a condition is 1 or 0
    ("reinforce", {"J": "A*sqrt(d)"}, "nan"),
]


@pytest.mark.parametrize(("name", "changes", "said"), SAID)
def test_what_is_said_of_a_row(name: str, changes: dict, said: str) -> None:
    assert said in to_text(load_row(name, changes))


@pytest.mark.parametrize("name", ["grpo_dapo", "opo", "pass_at_k", "spo", "topr", "distillation", "max_rl"])
def test_nothing_is_said_of_equal_groups_where_they_would_teach_nothing_or_are_trained(name: str) -> None:
    assert "Never trained" not in to_text(load_row(name))


# the picture ----------------------------------------------------------------------------------------------------------
def clipped(low: float, high: float) -> Callable[[float, float], float]:
    return lambda d, a: a * exp(d) * (exp(d) <= 1 + high if a > 0 else exp(d) >= 1 - low)


BY_HAND: dict[str, Callable[[float, float], float]] = {
    "grpo_dapo": clipped(0.2, 0.28),
    "tepo": lambda d, a: clipped(0.2, 0.28)(d, a) - 0.001 * (a > 0) * (1 - exp(-d)),
    "dro": lambda d, a: a - 0.05 * d,
    "kl_cov": lambda d, a: a * exp(d) - (d > 0) + (d < 0),
    "entropy_advantage": lambda d, a: clipped(0.2, 0.28)(d, a) * (1.2 if a > 0 else 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_coefficients_by_hand(name: str) -> None:
    found = coefficients(load_objective(name))
    assert found.log_ratio[0], found.log_ratio[-1] == (-1.5, 1.5)
    for values, a in ((found.high, 1), (found.low, -1)):
        expected = [BY_HAND[name](d, a) for d in found.log_ratio]
        off = [d for d, one, other in zip(found.log_ratio, values, expected, strict=True) if abs(one - other) > 1e-9]
        assert not [d for d in off if d], (a, off)  # at d = 0 |d| has no slope


# LaTeX ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("a - (b - c)*-k + (a + b)", r"a + (b - c)\, k + a + b"),
        ("(a + b)*c/(k*(1 - k))", r"\frac{(a + b)\, c}{k\, (1 - k)}"),
        ("-a/b*4", r"-4\, \frac{a}{b}"),
        ("4*a**2*1e-6", r"4\, a^{2} \cdot 10^{-6}"),
        ("(a*b)**2 + a**(-k)", r"(a\, b)^{2} + a^{-k}"),
        ("(a/b)**2", r"\left(\frac{a}{b}\right)^{2}"),
        ("a - expm1(b)*c", r"a + (1 - e^{b})\, c"),
        ("exp(logp_old - logp_sampler)", r"\frac{\pi_{\mathrm{old}}(y_{i,t})}{\pi_{\mathrm{sampler}}(y_{i,t})}"),
        ("mean_i(d - H)*T", r"\left(\frac{1}{T_{i}} \sum_{s} (d_{i,s} - H_{i,s})\right)\, T_{i}"),
        ("log(a)*b + log(a + b)", r"(\log a)\, b + \log(a + b)"),
        ("H_old**2", r"(H^{\mathrm{old}}_{i,t})^{2}"),
        ("(a > 0) & ((b < 0) | (c >= k))", r"\mathbf{1}[a > 0 \wedge (b < 0 \vee c \ge k)]"),
        ("~(a == b)*c", r"\mathbf{1}[\neg (a = b)]\, c"),
        ("where(a <= 0, b, c/k)*2",
         r"2\, \begin{cases} b & \text{if } a \le 0 \\[1ex] \dfrac{c}{k} & \text{else} \end{cases}"),
        ("abs(a)/sqrt(b)", r"\frac{\lvert a \rvert}{\sqrt{b}}"),
        ("mean_g(R, T)", r"\frac{\sum_{j \in \mathcal{G}_{i}} T_{j}\, R_{j}}{\sum_{j \in \mathcal{G}_{i}} T_{j}}"),
        ("mean_g(std_g(R))",
         r"\operatorname{mean}_{j \in \mathcal{G}_{i}}(\operatorname{std}_{l \in \mathcal{G}_{j}}(R_{l}))"),
        ("std_r(tokens(R)) - max_b(H)",
         r"\operatorname{std}_{(j,s) \in \mathrm{rollout}}(R_{j}) - \max_{(j,s) \in \mathrm{batch}}(H_{j,s})"),
        ("sum_gb(T) - max_gb(sum_i(H))",
         r"\sum_{j \in \mathcal{G}_{i} \cap \mathrm{batch}} T_{j} "
         r"- \max_{j \in \mathcal{G}_{i} \cap \mathrm{batch}}\left(\sum_{s} H_{j,s}\right)"),
        ("share_t(H_old, R > 0)",
         r"\mathbf{1}[R_{i} > 0]\, \frac{H^{\mathrm{old}}_{i,t}}"
         r"{\operatorname{mean}_{j \in \mathcal{G}_{i}:\, R_{j} > 0}(H^{\mathrm{old}}_{j,t})}"),
        ("top_b(H, 2*k)*d", r"\mathbf{1}[H_{i,t} \text{ among the } (2\, k)\,N \text{ largest}]\, d_{i,t}"),
        ("tail_b(d**2, d > 0, k)", r"\mathbf{1}[d_{i,t}^{2} \text{ beyond a mean of } k \text{ where } d_{i,t} > 0]"),
        ("low + k_up + alpha2", r"\varepsilon_{\mathrm{low}} + k_{\mathrm{up}} + \alpha_{2}"),
        ("my_own_name", r"\mathrm{my}_{\mathrm{own\_name}}"),
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
    assert "Overfull" not in done.stdout


def test_latex_has_each_line_and_constant_once() -> None:
    for row in ROWS:
        latex, equations = to_latex(row), len(row.formula.nodes)
        assert equations <= latex.count(" &= ") <= equations + 3, row.name  # d, dH and k3 are defined where they stand
        for name, one in read_constants(row).items():
            assert latex.count(f"\n% {name}: {one.source}\n") == 1
            assert latex.count(f"${Writer(row.formula.nodes).symbol(name, At())} = ") == 1, name
        assert not re.search(r"\(\([^()]*\)\)", latex), f"{row.name}: brackets twice"
    assert r"\bigl[ \min(w_{i}\, \hat{A}_{i}, " in to_latex(load_row("tepo"))
    assert "cut at the limit are left out.\n" in to_latex(VARIANTS[0])


# commands and the page ------------------------------------------------------------------------------------------------
def test_commands(tmp_path: Path) -> None:
    def says(*words: str) -> str:
        done = CliRunner().invoke(app, ["explain", *words])
        return done.output + str(done.exception or "")

    said = says("tepo", "objective.beta=1", "average=responses", "--formula", "J=w*A - beta*M*kl", "--vs", "gspo")
    assert "J = 1/B Σ_i 1/T_i Σ_t [ w*A - beta*M*kl ]" in said
    assert "Differs from gspo" in said
    assert says("gspo", "--format", "latex").startswith("% gspo: GSPO 2507.18071")
    drawn = says("cispo", "high=2", "--vs", "cispo", "--format", "svg")
    assert drawn.startswith("<svg")
    assert ">cispo</text>" in drawn
    assert ">cispo as shipped</text>" in drawn
    (tmp_path / "mine.yaml").write_text("like: tepo\nformula: {M: 1}\n")
    assert says(str(tmp_path / "mine.yaml")).startswith("mine\n\nTo maximise")
    assert "did you mean 'tepo'?" in says("teppo")
    assert "no expression" in says("tepo", "--formula", "J=min(w*A")
    assert "unknown format 'html'" in says("tepo", "--format", "html")
    listed = says()
    assert all(f" {name} " in listed for name in names())


def test_the_pages_have_the_tables_of_the_language() -> None:
    for file, made in tables().items():
        page = file.read_text()
        assert with_tables(page, made) == page, "python -m tests.unit.objectives.formula_tables"
    assert all(f"\n| `{name}` |" in (DOCS / "methods.md").read_text() for name in names())


def test_the_picture_of_the_page_is_of_the_rows() -> None:
    assert digest(picture()) in PICTURE.read_text(), "python -m tests.unit.objectives.formula_tables"


def test_every_shipped_row_says_its_idea_and_its_year() -> None:
    for row in map(load_row, names()):
        assert row.idea in IDEAS, row.name
        assert row.year is not None, row.name


def test_any_two_rows_are_told_apart() -> None:
    """By the lines that differ; where none does, the formulas mean the same."""
    rows = [load_row(name) for name in names()]
    same = {
        (one.name, other.name)
        for one, other in combinations(rows, 2)
        if not changed_lines(one, other) or one.formula.digest == other.formula.digest
    }
    assert same == set()


def test_the_files_of_the_page_are_rows(tmp_path: Path) -> None:
    files = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(files) == 3
    for n, text in enumerate(files):
        (tmp_path / f"row{n}.yaml").write_text(text)
        assert load_row(tmp_path / f"row{n}.yaml").formula
    assert load_row(tmp_path / "row1.yaml").formula.digest == load_row("tepo").formula.digest


def test_what_the_page_calls_otherwise_can_be_written_so() -> None:
    """Each line of the table is a row with settings, whose formula is sound and another one than the row's."""
    section = (DOCS / "methods.md").read_text().partition("## Under another name\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| .+ \| `(.+?)`[^`|]*(?:`.+`)?[^|`]*\|$", section, re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        name, *words = shlex.split(line)
        row = load_row(name, dict(word.split("=", 1) for word in words))
        assert (row.formula.digest != load_row(name).formula.digest) == bool(words), line


def test_the_distillation_of_prime_rl_is_the_line_of_the_page() -> None:
    """`ref_kl_loss_fn`, by hand: what fell by more than 0.2 is dropped, and a squared log-ratio is added."""
    (line,) = re.findall(r"^\| prime-rl `opd` \| `distillation (.+?)` \|$", (DOCS / "methods.md").read_text(), re.M)
    objective = load_objective("distillation", dict(word.split("=", 1) for word in shlex.split(line)))
    sampler, teacher = tensor(-1, -0.5, -2, -0.7), tensor(-0.5, -1, -1.5, -3)
    batch = by_hand([1.3, 0.9, 0.4, 1.1], [0.0] * 4, sampler_logprobs=sampler, teacher_logprobs=teacher)
    slopes, dropped = [], 0
    for now, then, taught in zip(batch.logprobs.tolist(), sampler.tolist(), teacher.tolist(), strict=True):
        fell = exp(now) - exp(then) < -0.2
        slopes.append((not fell) * exp(now - then) * (taught - now) - 2e-3 * (now - then))
        dropped += fell
    assert dropped == 1
    assert by_token(objective, batch).tolist() == pytest.approx(slopes, abs=1e-12)


def test_the_message_of_the_page_is_the_one_that_is_printed() -> None:
    (shown,) = re.findall(r"```text\n(error: .*?)```", PAGE.read_text(), re.DOTALL)
    done = CliRunner().invoke(app, ["explain", "grpo_dapo", "--formula", "J=meen_i(d)*A"])
    assert f"error: {done.exception}" == shown.rstrip("\n")


def test_traps_of_the_page_are_traps(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## Traps of YAML\n")[2].partition("\n## ")[0]
    written = re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)
    assert len(written) > 5
    below = {"source": "constants:\n  beta:\n    value: 1\n    ", "formula": ""}
    lines = "formula:\n  "
    for text in written:
        path = tmp_path / "mine.yaml"
        path.write_text(f"like: tepo\n{below.get(text.partition(':')[0], lines)}{text}\n")
        if text.startswith("J: w*A #"):
            assert load_row(path).formula
        else:
            with pytest.raises(UserError, match=r"mine\.yaml"):
                _ = load_row(path).formula
