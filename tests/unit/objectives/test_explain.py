"""`tepo explain`: its coefficient is the gradient, its constants are those in force and sourced,
its differences are differences."""

import re

import pytest
import torch
from typer.testing import CliRunner

from tepo.objectives import load_objective, names
from tepo.objectives.explain import explain
from tepo.objectives.explain_text import to_latex, to_text
from tests.invariants.rows import CHANGES, SPLIT_DEPENDENT, changed
from tests.unit.objectives.case import make_case

LABELS = {name: name for name in names()} | {
    label: changed(*change) for label, change in (CHANGES | SPLIT_DEPENDENT).items()
}


def evaluate(text: str, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """A printed coefficient as numbers: side by side means times."""
    code, _, definition = text.partition(", g = ")
    if definition:
        values = values | {"g": evaluate(definition, values)}
    code = re.sub(r"(?<=[\w)]) +(?=[\w(])", " * ", code)
    functions = {"exp": torch.exp, "sign": torch.sign, "sigmoid": torch.sigmoid, "clip": torch.clamp}
    return eval(code, {"__builtins__": {}}, functions | values)


@pytest.mark.parametrize(
    "label",
    [label for label in LABELS if not re.search("gmpo|entropy|full gradient|exact|filtered|mean over|dual", label)],
)
def test_the_coefficient_is_the_gradient(label):
    """d J / d log pi over the token's weight in the sums is what is printed, wherever no clip acts;
    0 where one does."""
    objective, case = load_objective(LABELS[label]), make_case(21, repeat=4)
    batch = case.batch(objective)
    leaf = batch.logprobs.detach().requires_grad_()
    batch = type(batch)(**{**batch.__dict__, "logprobs": leaf, "entropies": batch.entropies.detach()})
    out = objective.loss(batch, objective.prepare(batch, salt=3))
    scale = objective._local_plan(batch, objective.prepare(batch, salt=3))["scale"]
    found = -torch.autograd.grad(out.loss, leaf)[0] / scale
    d, tokens = leaf.detach() - batch.old_logprobs, out.tokens
    anchor = (
        batch.initial_logprobs
        if objective.penalties and objective.penalties[0].anchor == "initial"
        else batch.old_logprobs
    )
    ratio = tokens.get("ratio", torch.ones_like(d))
    gap = torch.exp(batch.old_logprobs - batch.sampler_logprobs)
    values = {
        "r_t": d.exp(),
        "w_i": ratio,
        "p_t": ratio,
        "A": tokens["advantage"],
        "e": leaf.detach() - anchor,
        "M": tokens.get("kl_mask", torch.ones_like(d)).double(),
    }
    values |= {
        "lambda_t": tokens.get("weight"),
        "v_t": gap.clamp(max=2.0),
        "T_i": batch.lengths[batch.rows],
        "tau": 1.05 - 0.05 * (batch.advantages > 0).double(),
    }
    if "by sequence" in label:
        values["v_t"] = torch.stack([gap[batch.rows == row].prod().clamp(max=2.0) for row in batch.rows.tolist()])
    printed = evaluate(explain(objective).coefficient.text, values)
    stopped = (
        tokens["clipped"]
        if objective.surrogate.__class__.__name__ != "Cispo" and "clipped" in tokens
        else torch.zeros_like(d, dtype=torch.bool)
    )
    torch.testing.assert_close(found[~stopped], (printed * torch.ones_like(d))[~stopped], rtol=1e-8, atol=1e-10)
    if stopped.any() and not objective.penalties:
        assert found[stopped].abs().max() < 1e-12


@pytest.mark.parametrize(("name", "changes", "printed"), [
    ("tepo_no_kl", {"weight": {"kind": "steer"}}, "w_i mean_s(lambda_s A_s)"),
    ("grpo_s", {"weight": {"kind": "steer"}, "correction": {"kind": "truncated"}}, "r_t mean_s(lambda_s v_s A_s)"),
    ("tepo_no_kl", {"advantage": {"kind": "gtpo"}}, "w_i mean_s(A_s)"),
    ("prefix_is", {"ratio": {"gradient": "full"}, "weight": {"kind": "steer"}}, "sum_(u>=t) lambda_u A_u p_u/u"),
])  # fmt: skip
def test_the_coefficient_where_factors_differ_within_a_response(name, changes, printed):
    """The gradient of a ratio of several tokens carries the amounts of all of them;
    lambda_t w_i A would be the local gradient's."""
    objective, case = load_objective(changed(name, changes)), make_case(21, repeat=4)
    assert explain(objective).coefficient.text == printed
    batch = case.batch(objective)
    leaf = batch.logprobs.detach().requires_grad_()
    batch = type(batch)(**{**batch.__dict__, "logprobs": leaf})
    plan = objective.prepare(batch, salt=3)
    out = objective.loss(batch, plan)
    d = leaf.detach() - batch.old_logprobs
    amount = out.tokens["advantage"] * out.tokens.get("weight", 1.0)
    if objective.correction != load_objective("tepo").correction:
        amount = amount * torch.exp(batch.old_logprobs - batch.sampler_logprobs).clamp(max=2.0)
    found, expected = -torch.autograd.grad(out.loss, leaf)[0] / plan.tokens["scale"], torch.empty_like(d)
    for row in range(len(batch.lengths)):
        own = batch.rows == row
        if name == "prefix_is":
            steps = torch.arange(1, int(own.sum()) + 1)
            expected[own] = (amount[own] * out.tokens["ratio"][own] / steps).flip(0).cumsum(0).flip(0)
        else:
            expected[own] = (d[own].exp() if name == "grpo_s" else out.tokens["ratio"][own]) * amount[own].mean()
    free = torch.stack([~out.tokens["clipped"][batch.rows == row].any() for row in range(len(batch.lengths))])[
        batch.rows
    ]
    assert free.any()
    torch.testing.assert_close(found[free], expected[free], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("vs", ["grpo_dapo", "gtpo", "tepo_max_entropy"])
def test_every_explanation_fits_80_columns_and_loses_no_word(label, vs):
    found = explain(load_objective(LABELS[label]), load_objective(vs))
    narrow = to_text(found, width=80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert set(to_text(found, width=10_000).split()) <= set(narrow.split())


@pytest.mark.parametrize("label", LABELS)
def test_every_row_explains_itself(label):
    objective = load_objective(LABELS[label])
    text = to_text(explain(objective))
    for part in (
        "To maximise",
        "J = 1/",
        "A = ",
        "Coefficient of ∇log π_t",
        "zero when",
        "Detached",
        "Constants",
        "The trainer must compute",
        "iffer",
    ):
        assert part in text, part
    latex = to_latex(explain(objective))
    assert latex.count("{") == latex.count("}")
    assert latex.count(r"\big(") + latex.count(r"\Big(") == latex.count(r"\big)") + latex.count(r"\Big)")
    assert "None" not in text + latex


@pytest.mark.parametrize("name", names())
def test_every_constant_of_a_shipped_row_has_a_source(name):
    for part in explain(load_objective(name)).constants:
        assert part.source or part.key == "penalty.tokens", part


def test_a_negative_penalty_is_a_plus():
    found = explain(load_objective(changed("tepo", {"penalty": {"coefficient": -1}})))
    assert found.formula.text.endswith("+ 1 KL_t M ]")
    assert found.coefficient.text == "w_i A  + 1 M (1 - exp(-e))"


def test_tepo():
    found = explain(load_objective("tepo"))
    assert found.formula.text == "J = 1/N sum_i sum_t [ min(w_i A, clip(w_i, 0.8, 1.28) A) - 0.001 KL_t M ]"
    assert found.coefficient.text == "w_i A  - 0.001 M (1 - exp(-e))"
    assert found.other == "grpo_dapo"
    constants = {part.key: part for part in found.constants}
    assert constants["penalty.coefficient"].source.startswith("TEPO Eq. 4; coefficient: TEPO 4.1")
    assert "penalty.fraction" not in constants, "a setting without a say is not shown"


def test_against_gspo():
    found = explain(load_objective("tepo"), load_objective("gspo"))
    changes = {row.key: (row.this, row.other) for row in found.differences}
    assert changes["surrogate.low"] == ("0.2", "0.0003")
    assert changes["aggregation.kind"] == ("token_mean", "seq_mean_token_mean")
    assert changes["penalty.kind"] == ("kl", "-")
    assert not any(key.startswith(("ratio", "advantage")) for key in changes)


def test_a_changed_setting_is_marked():
    found = explain(
        load_objective(changed("tepo", {"penalty": {"coefficient": 1.0}}) | {"name": "tepo"}), load_objective("tepo")
    )
    assert {part.key: part.source for part in found.constants}["penalty.coefficient"] == "set here"
    assert [(row.key, row.this, row.other) for row in found.differences] == [("penalty.coefficient", "1", "0.001")]
    assert "Differs from tepo as shipped" in to_text(found)


def test_command():
    import typer

    from tepo_cli.commands.explain import explain as command

    app = typer.Typer()
    app.command()(command)
    run = CliRunner().invoke(app, ["tepo", "penalty.coefficient=1", "--vs", "gspo"])
    assert run.exit_code == 0, run.output
    assert "- 1 KL_t M" in run.output
    assert "Differs from gspo" in run.output
    assert CliRunner().invoke(app, ["gspo", "--latex"]).output.startswith("% gspo: GSPO 2507.18071")
    assert "did you mean 'tepo'" in str(CliRunner().invoke(app, ["teppo"]).exception)
