"""Formulas as texts and in files; and formulas that nobody wrote, each against what numpy makes of its text."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tepo.common.errors import UserError
from tepo.formula.row import load_row, row_of
from tepo.objectives import Objective, TokenBatch, load_objective, names
from tepo.objectives.testing.case import LIMIT, TabularCase, make_case
from tests.support.runs import write
from tests.unit.objectives.flat import loss_of

Array = np.ndarray[Any, Any]
A = "(R - mean_g(R)) / (std_g(R) + 1e-6)"


def formula(J: str, constants: dict[str, float] | None = None, average: str = "tokens", **lines: str) -> Objective:
    return Objective("mine", {"A": A, **lines, "J": J}, constants or {}, average)


def gradient(made: Objective, case: TabularCase) -> Tensor:
    """By the logits [N, V]."""
    return torch.autograd.grad(loss_of(made, case.batch(made)).loss, case.logits)[0]


# texts ----------------------------------------------------------------------------------------------------------------
MISTAKES = [  # J, some of what is said, what the caret is under (unless empty)
    ("A*Logp", "did you mean 'logp'?", "Logp"),
    ("A*d + " + "(" * 41 + "d" + ")" * 41, "nested more than 40 deep", "("),
    ("А*logp", "cyrillic capital letter a", "А"),
    ("A.sum()*logp", "no dots", "A.sum()"),
    ("logp", "reads nothing of the rollout", "logp"),
    ("mean_g(d)*A", "mean_g is of the rollout, and d is of the loss", ""),
    ("sg(d)*A", "J has no gradient", ""),
    ("mean_b(responses(H))*A*d", "wants one value per response here, and this is one per token", "H"),
    ("top_b(H, 20)*A*d", "a share from 0 to 1", "20"),
    ("where(t > 1, d/(t - 1), 0)*A", "a division by 0 where t = 1", "t - 1"),  # its gradient is NaN there
    ("A*d/finished", "a division by 0 where finished = 0", "finished"),
]


@pytest.mark.parametrize(("J", "said", "under"), MISTAKES)
def test_mistakes_have_a_caret_under_the_word(J: str, said: str, under: str):
    with pytest.raises(UserError) as caught:
        formula(J)
    assert said in str(caught.value)
    if under:
        text, carets = (line[2:] for line in caught.value.what.splitlines()[-2:])
        assert text[carets.index("^") : len(carets)] == under


def test_the_weight_of_a_token_is_above_0_and_made_of_counts():
    for average in ("1/(B*sqrt(T))", "where(T > 2, 1, 0.5)/N", "1/(B*(L - T + 1))", "c/N"):
        assert gradient(formula("A*logp*c", {"c": 2.0}, average=average), make_case(0)).isfinite().all(), average
    for average, said in {
        "-1/N": "the weight of a token is -1 where N = 1",
        "(T > 2)/N": "is 0 where N = 1, T = 1",
        "1/(T - 1)": "is inf where T = 1",
        "logp_old/N": "reads N, B, T, L and constants alone",
    }.items():
        with pytest.raises(UserError, match="average: ") as caught:
            formula("A*logp*c", {"c": 1.0}, average=average)
        assert said in str(caught.value)


@pytest.mark.parametrize(
    "J",
    [
        *("clip(L, 1, 3)*comb(L, 2)*w*A", "draw_b(L > 3, 0.2)*w*A", "tail_b(H, L > 3, 0.2)*w*A"),
        *("mean_i(tokens(L))*w*A", "max_i(tokens(0.5))*w*A", "mean_b(tokens(N))*w*A", "w*(mean_r(tokens(L))*R)"),
        *("w*A*where(t > 1, 1/(t - 1), 0)", "w*A/max(T - 1, 1)", "w*((T > 1)*R/(T - 1))"),
        *("w*share_t(H_old, L > 5)", "w*share_g(R, L > 3)", "w*sum_k(share_g(R_k, L > 3)*weight_k)"),
        "w*A*d - (A > 5)*log(sg(0*d))",  # what a condition leaves out may be infinite
    ],
)
def test_numbers_are_taken_where_tensors_are(J: str):
    case, made = make_case(0), formula(J, w="exp(d)")
    metrics = loss_of(made, case.batch(made)).metrics.means()
    assert all(value == value for value in metrics.values())
    assert gradient(made, case).isfinite().all()


@pytest.mark.parametrize("function", ["min", "max"])
def test_equal_arguments_share_the_gradient_and_a_number_takes_none(function: str):
    """At ratio 1 and away from it. Whatever their order: the digest is the same."""
    for case in (make_case(0, drift=0.0), make_case(0)):
        whole = gradient(formula("exp(d)*A"), case)
        for parts, share in {"w, sg(w)": 1 / 2, "w, sg(w), sg(1*w)": 1 / 3, "w, w + 0*H_old, sg(w)": 2 / 3}.items():
            slope = gradient(formula(f"{function}({parts})*A", w="exp(d)"), case)
            torch.testing.assert_close(slope, share * whole, rtol=1e-12, atol=1e-15)
    case = make_case(0, drift=0.0)
    assert torch.equal(gradient(formula(f"{function}(w, 1)*A", w="exp(d)"), case), gradient(formula("exp(d)*A"), case))


@pytest.mark.parametrize(("start", "step"), [("d", "{x} + 0.001*d*{n}"), ("exp(0*d)", "{x}*{x}")])
def test_a_chain_of_300_lines(start: str, step: str):
    lines = {"x0": start, **{f"x{n}": step.format(x=f"x{n - 1}", n=n) for n in range(1, 300)}}
    made = formula("w*A + 0.001*x299", w="exp(d)", **lines)
    assert gradient(made, make_case(0)).isfinite().all()
    assert [*made.nodes][-1] == "J"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("min(w*A, clip(w, 1 - 0.2, 1.28)*A)", "min(A*clip(exp(d), 0.8, 1 + 0.28), A * w)", True),
        ("w*A - d", "d - w*A", False),
        ("clip(w, 0.8, 1.2)*A", "clip(w, 0.8, 1.3)*A", False),
    ],
)
def test_the_digest_is_of_the_meaning(one: str, other: str, same: bool):
    first, second = (formula(J, w="exp(d)").digest for J in (one, other))
    assert (first == second) == same


@pytest.mark.parametrize("J", ["min(w*A, x)", "max(x, w*A)", "clip(w*A, x, x + 1)"])
def test_no_bound_hides_a_number_that_is_none(J: str):
    """A logarithm of less than 0, which no input says."""
    made = formula(J, w="exp(d)", x="log(logp)")
    assert loss_of(made, make_case(0).batch(made)).loss.isnan()


# files ----------------------------------------------------------------------------------------------------------------
def test_every_constant_has_a_source():
    assert all(one.source for name in names() for one in load_row(name).constants.values())


def test_a_row_of_ones_own_is_like_another(tmp_path: Path):
    path = write(tmp_path / "mine.yaml", "like: tepo\nformula:\n  w: exp(d)\n")
    assert load_objective(str(path)) == load_objective(path)
    assert load_objective(path).digest == load_objective("tepo", {"w": "exp(d)"}).digest
    deeper = load_row(write(tmp_path / "deeper.yaml", "like: mine\nconstants: {beta: 0.5}\n"))
    assert (deeper.constants["beta"].value, deeper.lines["w"]) == (0.5, "exp(d)")
    falls_away = load_objective(write(tmp_path / "plain.yaml", "like: tepo\nformula:\n  J: |\n    w*A\n"))
    assert falls_away.needs == load_objective("grpo_dapo").needs


@pytest.mark.parametrize("name", names())
def test_what_a_run_keeps_is_the_row(name: str):
    """The mapping in a run's configuration gives the same formula; `-` and `_` are the same in names."""
    formula = load_row(name).formula
    assert row_of(formula.mapping).formula.digest == load_objective(formula.mapping).digest == formula.digest
    assert row_of(formula.mapping).formula.mapping == formula.mapping
    assert load_row(name.replace("_", "-")).formula.mapping == formula.mapping


@pytest.mark.parametrize(
    ("text", "said", "where"),
    [
        ("formula: {J: min(w*A, b)}", 'quotes: J: "min(w*A, b)"', ":1 (formula.J)"),
        ("like: tepo\nformula:\n  M: (A > 0\n", "no expression\n  (A > 0\n  ^", ":3 (formula.M)"),
        ("like: tepo\nformula:\n  Q: d\n", "nothing reads Q", ""),
        ("like: teppo\n", "did you mean 'tepo'?", ""),
        ("like: tepo\nconstants: {beta: 010}\n", "YAML reads 010 as 8", ":2 (constants.beta)"),
    ],
)
def test_mistakes_in_a_file_name_it(text: str, said: str, where: str, tmp_path: Path):
    path = write(tmp_path / "mine.yaml", text)
    with pytest.raises(UserError) as caught:
        _ = load_row(path).formula
    assert said in str(caught.value)
    assert f"{path}{where}" in str(caught.value)


def test_changes_set_constants_and_lines():
    row = load_row("tepo", {"beta": "0.1", "w": "exp(d)", "average": "responses", "keep": "finished"})
    assert row.constants["beta"].value == 0.1
    assert (row.lines["w"], row.average, row.keep) == ("exp(d)", "responses", "finished")
    plain = load_row("tepo", {"J": "w*A"}).formula
    assert plain.read == {"J", "A", "w", "eps"}, "what the row itself names falls away too"
    assert load_row("tepo", {"k": "0.5*kl", "J": "w*A - beta*M*k"}).formula.read >= {"k", "kl", "beta"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"J": "w*A", "beta": 2}, "nothing reads beta\nin: objective.beta"),
        ({"beta": float("nan")}, "nan is no number"),
        ({"w": "exp(e)"}, "w: unknown name 'e'\n  exp(e)\n      ^\nin: objective.w"),
    ],
)
def test_changes_that_cannot_be_meant(changes: dict, said: str):
    with pytest.raises(UserError) as caught:
        load_objective("tepo", changes)
    assert said in str(caught.value)


def test_groups_of_like_rewards_are_trained_where_nothing_is_taken_over_a_group():
    every = {name for name in names() if load_objective(name).every_group}
    assert every == {"distillation", "reinforce_pp_no_group", "spo", "topr"}
    assert load_objective("reinforce", {"A": "R - 0.5"}).every_group
    assert not load_objective("reinforce", {"A": "R/G"}).every_group


# formulas that nobody wrote -------------------------------------------------------------------------------------------
NUMBERS = st.sampled_from(("0", "0.5", "1", "2", "5", "L", "N", "B", "sqrt(L)", "log(L)", "max(L, 3)", "clip(L, 1, 3)"))
RESPONSES = st.sampled_from(("T", "finished", "mean_i(d)", "sum_i(H)", "A"))
TOKENS = st.sampled_from(("w", "d", "H", "logp", "logp_old", "t", "w*A", "clip(w, 0.8, 1.2)*A", "sg(w)", "tokens(2)"))
CONDITIONS = st.sampled_from(("(A > 0)", "(d > 0)", "(t > 2)", "(T > 3)", "(L > 5)", "(L > 6)", "(finished > 0)"))


def _of(*templates: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A template with its places filled."""
    return st.builds(lambda text, **filled: text.format(**filled), st.sampled_from(templates), **parts)


_ANY = ("min({x}, {y})", "max({x}, {y})", "min({y}, {x}, 1)", "max({x}, {y}, {z})", "clip({x}, 0.5, 2)")
_ANY += ("clip({x}, min({y}, {z}), max({y}, {z}))", "({x} + {y})", "({x} - {y})", "{x}*{y}", "{x}/(1 + abs({y}))")
_ANY += ("exp({x})", "sqrt(1 + abs({x}))", "abs({x})", "sigmoid({x})", "k2({x})", "k3({x})", "sg({x})", "-{x}")
_ANY += ("where({c}, {x}, {y})", "{c}*{x}", "{x}*(~{c} | (A > 0))", "expm1({x})")
WITHIN_RESPONSE = ("mean_i({x})", "sum_i({x})", "max_i({x})")
OVER_BATCH = ("mean_b(tokens({x}))", "mean_b(responses({x}))", "std_b(responses({x}))", "max_b(tokens({x}))")


def _grown(token: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    response = RESPONSES | _of(*WITHIN_RESPONSE, x=token.map(lambda text: f"({text} + 0*d)"))
    of_group = _of("sum_gb({x})", "max_gb({x})", "1/sum_gb(1 + abs({x}))", *OVER_BATCH, x=response)
    every = token | response | NUMBERS | of_group
    return _of(*_ANY, x=every, y=every, z=every, c=CONDITIONS) | _of("prefix_mean_i({x} + 0*d)", x=every)


EXPRESSIONS = st.recursive(TOKENS, _grown, max_leaves=6)


# numpy ----------------------------------------------------------------------------------------------------------------
def _exp(x: Array) -> Array:
    return np.exp(np.minimum(x, 20.0))


def _k3(x: Array) -> Array:
    return np.expm1(-np.maximum(x, -20.0)) + np.maximum(x, -20.0)


def _spread(x: Array) -> float:
    return x.std(ddof=1) if len(x) > 1 else 0.0


def values(J: str, lines: Mapping[str, str], batch: TokenBatch, keep: bool) -> Array:
    """What a text is at each token in the loss, every aggregate written out over the tokens that it is of."""
    named = {"logp": batch.logprobs, "logp_old": batch.old_logprobs, "H": batch.entropies, "A": batch.advantages}
    given = {name: value.detach().numpy() for name, value in named.items()}
    lengths, finished = batch.lengths.numpy(), batch.finished.numpy()
    owner, t = np.repeat(np.arange(len(lengths)), lengths), np.concatenate([np.arange(size) + 1 for size in lengths])
    group, kept, every = batch.group_ids.numpy()[owner], finished[owner] | (not keep), np.ones((len(t), 1), bool)
    own = owner[:, None] == owner

    def over(function: Callable[[Array], float], seen: Array) -> Callable[[Array], Array]:
        """seen: of which tokens [N] each token [N] takes the value."""
        return lambda x: np.array([function(np.broadcast_to(x, len(t))[row]) if row.any() else 0.0 for row in seen])

    counts = {"t": t, "T": lengths[owner], "finished": finished[owner], "L": LIMIT}
    counts |= {"N": kept.sum(), "B": (kept & (t == 1)).sum()}
    plain = {"exp": _exp, "expm1": lambda x: np.expm1(np.minimum(x, 20.0)), "log": np.log, "sqrt": np.sqrt, "k3": _k3}
    plain |= {"abs": np.abs, "sigmoid": scipy.special.expit, "k2": lambda x: x**2 / 2, "sg": lambda x: x}
    plain |= {"min": lambda *x: reduce(np.minimum, x), "max": lambda *x: reduce(np.maximum, x), "tokens": lambda x: x}
    plain |= {"clip": lambda x, low, high: np.minimum(np.maximum(x, low), high), "where": np.where}
    of_response = {"mean_i": np.mean, "sum_i": np.sum, "max_i": np.max}
    of_group = {"sum_gb": np.sum, "max_gb": np.max}
    of_batch = {"mean_b": np.mean, "std_b": _spread, "max_b": np.max}
    scope = given | counts | plain | {"d": given["logp"] - given["logp_old"]}
    scope |= {name: over(function, own) for name, function in of_response.items()}
    scope |= {"prefix_mean_i": over(np.mean, own & (t <= t[:, None]))}
    scope |= {name: over(one, kept & (t == 1) & (group[:, None] == group)) for name, one in of_group.items()}
    scope |= {name: over(one, kept & every) for name, one in of_batch.items()}
    scope |= {f"{name}_responses": over(one, kept & every & (t == 1)) for name, one in of_batch.items()}
    for name, text in {**lines, "J": J}.items():
        scope[name] = eval(text.replace("_b(responses(", "_b_responses(("), scope)
    return np.broadcast_to(scope["J"], len(t))[kept]


def loss_and_gradient(made: Objective, case: TabularCase, batch: TokenBatch) -> tuple[float, Tensor]:
    """The loss, and its slope by the logits [N, V]."""
    out = made.loss(batch, made.prepare(batch, salt=1)).loss
    return float(out.detach()), torch.autograd.grad(out, case.logits, retain_graph=True)[0]


def close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-9 * (1e-3 + other.abs().max()))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    text=EXPRESSIONS,
    constant=st.sampled_from(("", " + 3", " - L")),
    keep=st.booleans(),
    drift=st.sampled_from((0.0, 0.5)),
)
def test_a_formula_is_what_numpy_makes_of_its_text(text: str, constant: str, keep: bool, drift: float):
    """Its value; its gradient in one micro-batch or in one for each response, and without what was cut."""
    lines, J = {"w": "exp(d)", "x": text}, f"w*A + 0.1*x{constant}"
    made = Objective("mine", {"A": A, **lines, "J": J}, {}, keep="finished" * keep)
    case = make_case(0, drift=drift)
    case = replace(case, finished=case.finished & (torch.arange(9) < 6))  # a whole group is cut
    batch = case.batch(made)
    loss, slope = loss_and_gradient(made, case, batch)

    expected = values(J, lines, batch, keep)
    assert loss == pytest.approx(-expected.mean(), rel=1e-9, abs=1e-9 * (1 + np.abs(expected).mean()))
    assert slope.isfinite().all() or not math.isfinite(loss)

    plan = made.prepare(batch, salt=1)
    parts = [made.loss(batch.select([i]), plan.select([i])).loss for i in range(9)]
    assert close(torch.autograd.grad(sum(parts), case.logits, retain_graph=True)[0], slope)

    if keep:
        left = replace(made, keep="")
        assert close(loss_and_gradient(left, case, batch.select(case.finished))[1], slope)
