"""A surrogate is one class, and an objective is one YAML file: nothing else has to know them."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.objectives import Objective, TokenBatch, load_objective, names, objective_mapping
from tepo.objectives.axes import surrogate
from tepo.objectives.explain import explain, to_latex, to_text
from tepo.reporting import colours
from tests.unit.objectives.flat import by_hand, coefficients
from tests.unit.objectives.tables import PAGE, with_tables

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_method" / "kinds" / "spo.py"


def example() -> type:
    """The surrogate of the documented example, here as a class of an ordinary module."""
    spec = spec_from_file_location("spo", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Spo


@pytest.fixture
def spo(monkeypatch):
    """A row with the surrogate, which no file of the package names."""
    monkeypatch.setitem(surrogate.KINDS, "spo", example())
    axes = {"advantage": "group_normalized", "ratio": "token", "aggregation": "token_mean"}
    return lambda **settings: load_objective(axes | {"surrogate": {"kind": "spo", **settings}})


def test_golden_numbers_of_an_own_surrogate(spo):
    batch = by_hand([1.0, 1.1, 0.9, 1.3, 1.2], [1.0, 2.0, -1.0, -0.5, 1.0])
    objective = spo(width=0.2)
    # w A - |A| (w - 1)^2 / 0.4, by hand
    gains = [1.0, 2.2 - 0.05, -0.9 - 0.025, -0.65 - 0.1125, 1.2 - 0.1]
    assert objective.loss(batch, objective.prepare(batch)).loss.item() == pytest.approx(-sum(gains) / 5)
    # w (A - |A| (w - 1) / 0.2), by hand: 0 at the end of the width
    slopes = [1.0, 1.1 * (2 - 1), 0.9 * (-1 + 0.5), 1.3 * (-0.5 - 0.75), 0.0]
    assert coefficients(objective, batch).tolist() == pytest.approx(slopes, abs=1e-12)


def steepest_and_last(objective: Objective) -> tuple[float, float]:
    """A softmax policy over four tokens, the first of them rewarded, in 20 rounds of ten steps:
    the largest ratio of that token in a round, and its probability in the end."""
    logits, steepest = torch.zeros(4, dtype=torch.float64, requires_grad=True), 0.0
    advantages = torch.tensor([1.5, -0.5, -0.5, -0.5], dtype=torch.float64)
    for _ in range(20):
        old = torch.log_softmax(logits, 0).detach()
        for _ in range(10):
            new = torch.log_softmax(logits, 0)
            batch = TokenBatch(old, advantages, torch.ones(4, dtype=torch.int64), logprobs=new)
            (gradient,) = torch.autograd.grad(objective.loss(batch, objective.prepare(batch)).loss, logits)
            logits = (logits - gradient / 2).detach().requires_grad_()
        steepest = max(steepest, (torch.log_softmax(logits, 0) - old).exp()[0].item())
    return steepest, torch.softmax(logits, 0)[0].item()


def test_an_own_surrogate_trains(spo):
    """It moves the policy to the rewarded token, in smaller steps than without a bound."""
    free = load_objective(objective_mapping(spo()) | {"surrogate": "unclipped"})
    (bounded, last), (unbounded, _) = steepest_and_last(spo()), steepest_and_last(free)
    assert bounded < 1.3 < unbounded
    assert last > 0.9


def test_an_own_surrogate_explains_itself(spo):
    found = explain(spo(width=0.5))
    assert found.formula.text == "J = 1/N sum_i sum_t [ r_t A - |A| (r_t - 1)^2 / 1 ]"
    assert found.coefficient.text == "r_t (A - |A| (r_t - 1) / 0.5)"
    assert found.coefficient.zero == "A > 0 and r_t = 1.5, A < 0 and r_t = 0.5"
    constants = {part.key: part[1:] for part in found.constants}
    assert constants["surrogate.width"] == ("0.5", "where the slope turns", "set here")
    assert ("surrogate.kind", "spo", "ppo_clip") in found.differences
    assert "r_t = exp(d_t)" in to_text(found)
    assert "|A_{i,t}| (r_{i,t} - 1)^2 / 1" in to_latex(found)


def test_the_options_of_an_own_surrogate_are_checked(spo):
    assert load_objective(objective_mapping(spo(width=0.3))) == spo(width=0.3)
    with pytest.raises(UserError, match="did you mean 'width'"):
        spo(widht=0.3)
    with pytest.raises(UserError, match=r"surrogate\.width must be at least 1e-06"):
        spo(width=-1)
    with pytest.raises(UserError, match="surrogate spo takes a ratio"):
        load_objective(objective_mapping(spo()) | {"ratio": "none"})


def command(*words: str) -> str:
    from tepo_cli.commands.objectives import explain as explained
    from tepo_cli.commands.runs import listing

    app = typer.Typer()
    app.command("explain")(explained)
    app.command("list")(listing)
    run = CliRunner().invoke(app, words)
    assert run.exit_code == 0, run.output
    return run.output


def test_the_command_line_takes_an_own_surrogate(spo):
    assert "r_t A - |A| (r_t - 1)^2 / 0.4" in command("explain", "grpo_dapo", "surrogate=spo")


def test_an_objective_is_one_file(tmp_path, monkeypatch):
    """Loaded, listed, explained, coloured and in the documentation's table by its YAML alone."""
    row = tmp_path / "objective" / "gspo_dual.yaml"
    row.parent.mkdir()
    row.write_text(
        "# GSPO with the dual clip.\n"
        "advantage: {kind: group_normalized}\n"
        "ratio: {level: sequence, mean: geometric}\n"
        "surrogate: {kind: ppo_clip, low: 0.0003, high: 0.0004, dual: 3.0} # a choice of this test\n"
        "aggregation: {kind: seq_mean_token_mean}\n"
    )
    before = {colours.look(name) for name in names()}
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))

    assert load_objective("gspo-dual").surrogate.dual == 3.0
    assert load_objective(compose(["objective=gspo_dual"]).objective).name == "gspo_dual"
    assert "gspo_dual" in command("list")
    assert "gspo_dual: GSPO with the dual clip." in command("explain", "gspo_dual", "--vs", "gspo")
    assert colours.look("gspo_dual") not in before
    added = set(with_tables(PAGE.read_text()).splitlines()) - set(PAGE.read_text().splitlines())
    assert added == {"| `gspo_dual` | GSPO with the dual clip. |"}
