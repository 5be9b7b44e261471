"""The checks that every row passes; functions of a user's own in Python: what they compute, what is refused, and what a
run keeps of their file."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.formula.row import kept_row, load_row, row_of
from tepo.objectives import Objective, load_objective, names
from tepo.objectives.check import CHECKS, check_objective, check_runs, unsplit
from tepo.objectives.explain import to_text
from tepo.objectives.testing.case import make_case
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity, run_id
from tepo.training.preflight import check_settings
from tepo.training.run import Run
from tepo_cli.main import app
from tests.invariants.rows import covering, variants
from tests.support.runs import write
from tests.unit.objectives.flat import by_hand, coefficients, loss_of
from tests.unit.objectives.own_examples import examples, follow

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_method"
HEAD = """
import torch
from tepo.objectives import function

@function(takes="{takes}", gives="{gives}")
def {name}(layout, x):
    return {body}
"""
A = "(R - mean_g(R)) / (std_g(R) + 0.000001)"


def mine(text: str, J: str, **lines: str) -> Objective:
    return Objective("mine", {"A": A, **lines, "J": J}, {}, functions={"own.py": text} if text else {})


def own(name: str, body: str, J: str, takes: str = "token", gives: str = "token", **lines: str) -> Objective:
    return mine(HEAD.format(name=name, body=body, takes=takes, gives=gives), J, **lines)


def failed(objective: Objective) -> dict[str, str]:
    return {check.name: check.wrong for check in check_objective(objective) if check.wrong}


@pytest.mark.parametrize("label", dict.fromkeys([*names(), *covering()]))
def test_every_row_and_every_function_passes(label: str) -> None:
    assert failed(variants()[label]) == {}


TOKEN = "A*exp(f(d))"
FAULTS: dict[str, tuple[str, str, Objective]] = {
    "a gradient is lost": ("gradient", "from finite differences", own("f", "x.detach() + 0.5*(x - x.detach())", TOKEN)),
    "no gradient at all": ("gradient", "the gradient's norm is 0", own("f", "x.detach()", TOKEN)),
    "a mean over the micro-batch": ("micro-batches", "micro-batches: the gradient", own("f", "x - x.mean()", TOKEN)),
    "a metric of the micro-batch": (
        "micro-batches", "actor/ratio_mean is", own("f", "x*len(x)", "w*A*0 + A*d", w="f(exp(logp_old))")
    ),
    "the order of responses": (
        "micro-batches", "another order",
        own("f_b", "layout.sequence.to(x.dtype)/36", "A*exp(d)*f_b(logp_old)"),
    ),
    "one rank's tokens": (
        "ranks", "two ranks: the gradient",
        own("f_b", "x.mean()", "A*exp(d)*f_b(logp_old)", gives="number"),
    ),
    "one rank's rewards": (
        "ranks", "other advantages",
        own("f_r", "x.mean()", "A*d", takes="response", gives="number", A="(R - mean_g(R))/f_r(R)"),
    ),
    "too large": ("extremes", "log-ratios of 25: the loss is", mine("", "A*exp(d)**8")),
    "an infinite slope": ("extremes", "the policy that sampled: the gradient", mine("", "A*sqrt(abs(d)) + d")),
    "a mean that is not exact": (
        "alike", "equal rewards of a group give an advantage of",
        own("f_g", "x + 1e-9", "A*d", takes="response", gives="response", A="R - f_g(mean_g(R))"),
    ),
    "a draw": ("repeated", "other numbers", own("f", "x + torch.rand_like(x)", TOKEN)),
    "digits lost": ("float32", "float32: the gradient", own("f", "(x + 1e4) - 1e4", TOKEN)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    check, says, objective = FAULTS[fault]
    assert says in CHECKS[check](objective)


def test_every_check_was_seen_to_fail() -> None:
    assert {check for check, *_ in FAULTS.values()} == set(CHECKS)


def test_what_is_wrong_names_the_files() -> None:
    beyond = failed(own("f", "x if len(x) > 2 else x[5]", TOKEN))["micro-batches"]
    assert re.match(r"f: IndexError: index 5 .*\(own.py:7\); functions of your own: own.py$", beyond)


def test_advantages_without_a_baseline_are_not_asked_for_0() -> None:
    """Those of a group do not add up to 0."""
    assert failed(mine("", "A*d", A="R")) == {}


# what functions compute -----------------------------------------------------------------------------------------------
FILE = HEAD.format(name="soft", body="width * torch.tanh(x / width)", takes="token number?", gives="token").replace(
    "(layout, x)", "(layout, x, width=2.0)"
)
RETURN = "    return width * torch.tanh(x / width)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


def gradient(objective: Objective) -> Tensor:
    case = make_case(5)
    return unsplit(objective, case, case.batch(objective))[0]


@pytest.mark.parametrize("name", examples())
def test_an_example_of_the_page_passes_every_check(name: str, folder: Path) -> None:
    follow(name, folder)
    objective = load_objective(name)
    assert failed(objective) == {}
    assert bool(objective.functions) == (len(examples()[name]) == 2)


def test_a_function_is_explained(folder: Path) -> None:
    follow("quantile", folder)
    assert "before the first backward pass\n  quantile_b(H, share)\n" in to_text(load_row("quantile"))


def test_a_function_sees_the_place_of_each_token_in_its_response() -> None:
    batch = by_hand([1.1, 1.2, 0.9, 1.3, 1.5], [1.0] * 5, [3, 2])
    text = FILE.replace(RETURN, "    return x * (layout.positions == 1) * (layout.sequence + 2)")
    gains = [1.0, 1.2**2, 1.0, 1.0, 1.5**3]
    assert loss_of(mine(text, "A*exp(soft(d))"), batch).loss.item() == pytest.approx(-sum(gains) / 5)


def test_the_example_of_the_repository_needs_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """w A - |A| (w - 1)^2 / 0.4, and its slope w (A - |A| (w - 1) / 0.2), by hand."""
    monkeypatch.setenv("TEPO_PATH", str(EXAMPLE))
    objective = load_objective("my_spo")
    batch = by_hand([1.0, 1.1, 0.9, 1.3, 1.2], [1.0, 2.0, -1.0, -0.5, 1.0])
    gains = [1.0, 2.2 - 0.05, -0.9 - 0.025, -0.65 - 0.1125, 1.2 - 0.1]
    assert loss_of(objective, batch).loss.item() == pytest.approx(-sum(gains) / 5)
    slopes = [1.0, 1.1 * (2 - 1), 0.9 * (-1 + 0.5), 1.3 * (-0.5 - 0.75), 0.0]
    assert coefficients(objective, batch).tolist() == pytest.approx(slopes, abs=1e-12)
    page = (EXAMPLE.parents[1] / "docs" / "own-method.md").read_text()
    assert f"```yaml\n{(EXAMPLE / 'objective' / 'my_spo.yaml').read_text()}```" in page


def test_an_argument_that_may_be_left_out() -> None:
    assert torch.equal(gradient(mine(FILE, "A*exp(soft(d))")), gradient(mine(FILE, "A*exp(soft(d, 2))")))
    plain = gradient(mine("", "A*exp(3*(2*sigmoid(2*d/3) - 1))"))
    torch.testing.assert_close(gradient(mine(FILE, "A*exp(soft(d, 3))")), plain)


# mistakes -------------------------------------------------------------------------------------------------------------
CALL = "A*exp(soft(d, 3))"


@pytest.mark.parametrize(
    ("old", "new", "said", "where"),
    [
        ("width=2.0):", "width=2.0:", "not valid Python: ", "own.py:6"),
        ('@function(takes="token number?", gives="token")\n', "", "the file declares no function", "own.py"),
        ("token number?", "tokn", "unknown word for what soft takes or gives 'tokn'", "own.py:6"),
        ('gives="token"', 'gives="number"', "gives a number of its micro-batch", "own.py:6"),
        ("(layout, x,", "(x,", 'takes "token number?", and has the arguments (x, width=2.0)', "own.py:6"),
    ],
)
def test_a_mistake_in_a_declaration_has_its_line(old: str, new: str, said: str, where: str) -> None:
    with pytest.raises(UserError) as caught:
        mine(FILE.replace(old, new), CALL)
    assert said in str(caught.value)
    assert caught.value.where == where


STATE = {  # what the body of a function does, what stands in front of it, and what changes
    "mean": ("global mean\n    mean = 0.9*mean + 0.1*float(x.detach().mean())", "mean = 0.0"),
    "box": ("box.value += 1", "class Box:\n    value = 0\nbox = Box()"),
    "steps": ("next(steps)", "import itertools\nsteps = itertools.count()"),
}


@pytest.mark.parametrize("name", STATE)
def test_what_is_kept_from_call_to_call_is_refused(name: str) -> None:
    body, before = STATE[name]
    text = FILE.replace("@function", f"{before}\n\n@function")
    with pytest.raises(UserError, match=f"calls of the functions change {name}:") as caught:
        check_runs(mine(text.replace("    return width", f"    {body}\n    return width"), CALL))
    assert caught.value.where == "own.py"


def test_what_stays_the_same_may_be_kept() -> None:
    """Tables at the top, a cache, a circle and a NaN."""
    before = (
        "import functools\ntable = {'a': [float('nan'), torch.ones(3)]}\ntable['itself'] = table\n"
        "@functools.cache\ndef half(size):\n    return torch.full((size,), 0.5)\n"
    )
    text = FILE.replace("@function", f"{before}\n@function")
    check_runs(mine(text.replace("    return width", "    half(1)\n    return width"), CALL))


@pytest.mark.parametrize(
    ("code", "said", "line"),
    [  # where: its `def`, or the line of an exception
        ("x.tolist()", "soft gives list; expected: float64 [24] on cpu, one per token", 6),
        ("layout.lengths.double()", "values[layout.sequence] gives each token the number of its response", 6),
        ("x.tahn()", "soft: AttributeError: 'Tensor' object has no attribute 'tahn'", 7),
        ("x*layout.all_sum(x.sum())", "only a function whose name ends with _r or _b looks", 7),
    ],
)
def test_what_a_function_gives_is_checked(code: str, said: str, line: int) -> None:
    with pytest.raises(UserError) as caught:
        gradient(mine(FILE.replace(RETURN, f"    return {code}"), CALL))
    assert said in str(caught.value)
    assert caught.value.where == f"own.py:{line}"


# files ----------------------------------------------------------------------------------------------------------------
CODE = examples()["erf"]["functions/erf.py"]


@pytest.fixture
def erf(folder: Path) -> Path:
    """A folder of TEPO_PATH with functions/erf.py and an objective that calls its function."""
    return follow("erf", folder)


def changed(erf: Path, old: str, new: str) -> Path:
    """The file with one piece of its code replaced."""
    assert old in CODE
    return write(erf / "functions/erf.py", CODE.replace(old, new))


def test_the_content_is_part_of_the_id_and_the_location_is_not(erf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_id(compose(["objective=erf"]))
    monkeypatch.chdir(erf)
    for named in ("erf", "functions/erf.py", str(erf / "functions" / "erf.py")):  # on the command line
        config = compose(["objective=grpo_dapo", f"objective.functions={named}", "objective.J=A*erf((w - 1)/0.3)"])
        assert run_id(config) == first
        assert list(config.objective["functions"].values()) == [CODE]
    row = (erf / "objective" / "erf.yaml").read_text()
    write(erf / "functions/other_name.py", CODE)
    write(erf / "objective/erf.yaml", row.replace("functions: erf", "functions: other_name"))
    assert run_id(compose(["objective=erf"])) == first
    write(erf / "functions/other_name.py", CODE.replace("x.erf()", "x.sin()"))
    assert run_id(compose(["objective=erf"])) != first


def test_a_run_keeps_the_text_and_executes_no_strange_file(erf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, elsewhere = erf / "executed", erf / "elsewhere.py"
    path = changed(erf, "return x.erf()", f"open({str(mark)!r}, 'w')\n    return x.erf()")
    config = compose(["objective=erf", f"store={erf}/runs"])
    run = RunFolder.of(config)
    run.create(config, identity(config))
    stored = json.loads(run.config_file.read_text())["full"]["objective"]
    assert kept_row(stored, run.path).formula.digest == load_objective("erf").digest  # his own file
    path.unlink()
    (erf / "objective" / "erf.yaml").unlink()
    assert identity(config)["config"]["objective"] == row_of(stored).formula.digest  # needs no file
    with pytest.raises(UserError, match="the run keeps Python that is not in functions/ of your TEPO_PATH"):
        kept_row(stored, run.path)
    write(elsewhere, CODE)
    in_place_of_the_text = {**stored, "functions": str(elsewhere)}
    assert not mark.exists()

    def swapped(objective: Mapping[str, Any]) -> list[str]:
        elsewhere.write_text(path.name)  # after it was looked at
        return []

    monkeypatch.setattr("tepo.formula.row.foreign_files", swapped)
    kept = kept_row(in_place_of_the_text, run.path)
    assert list(kept.functions.values()) == [CODE], "what was looked at is what is executed"


def test_training_says_what_is_wrong_before_it_starts(erf: Path) -> None:
    path = changed(erf, "x.erf()", "x.erf().double()")
    with pytest.raises(UserError, match=r"erf gives float64 \[96\] on cpu; expected: float32 \[96\]") as caught:
        check_settings(Run(compose(["objective=erf"])))
    assert str(caught.value.where).startswith(f"{path}:")
    assert caught.value.exit_code == 2


def test_the_command_ends_with_the_code_of_the_outcome(erf: Path) -> None:
    good = CliRunner().invoke(app, ["explain", "erf", "--check"])
    assert (good.exit_code, good.output.count("pass")) == (0, len(CHECKS))
    changed(erf, "x.erf()", "x.erf() - x.mean()")
    bad = CliRunner().invoke(app, ["explain", "erf", "--check"])
    assert bad.exit_code == 1
    assert "micro-batches" in bad.output
