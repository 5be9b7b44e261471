"""Functions of a user's own in Python: what they compute, what is refused, and what a run keeps of their file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.formula.row import kept_row, row_of
from tepo.objectives import Groups, Objective, load_objective
from tepo.objectives.check import CHECKS, check_objective, check_runs, unsplit
from tepo.objectives.testing.case import make_case
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity, run_id
from tepo.training.preflight import check_settings
from tepo.training.run import Run
from tepo_cli.main import app
from tests.support.runs import write
from tests.unit.objectives.flat import by_hand, coefficients, loss_of
from tests.unit.objectives.own_examples import examples, follow

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_method"
A = "(R - mean_g(R)) / (std_g(R) + 0.000001)"
FILE = '''
import torch
from tepo.objectives import function

@function(takes="token number?", gives="token")
def soft(layout, x, width=2.0):
    """Softened.

    More."""
    return width * torch.tanh(x / width)
'''
RETURN = "    return width * torch.tanh(x / width)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


def mine(text: str = FILE, J: str = "A*exp(soft(d, 3))", file: str = "own.py", **lines: str) -> Objective:
    return Objective("mine", {"A": A, **lines, "J": J}, {}, functions={file: text})


def gradient(objective: Objective) -> Tensor:
    case = make_case(5)
    return unsplit(objective, case, case.batch(objective))[0]


# what they compute ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", examples())
def test_an_example_of_the_page_passes_every_check(name: str, folder: Path) -> None:
    follow(name, folder)
    objective = load_objective(name)
    assert [check for check in check_objective(objective) if check.wrong] == []
    assert bool(objective.functions) == (len(examples()[name]) == 2)


def test_numbers_of_the_examples_by_hand(folder: Path) -> None:
    for name in ("median", "quantile", "erf"):
        follow(name, folder)
    ids = torch.tensor([0, 0, 0, 1, 1])
    groups = Groups(torch.tensor([1.0, 0.0, 0.25, 1.0, 0.0]), ids, torch.tensor([1, 2, 1, 1, 1]))
    assert load_objective("median").advantages(groups).tolist() == [0.75, -0.25, -0.25, 0.0, 1.0, 0.0]
    entropies = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5], dtype=torch.float64)
    batch = by_hand([1.1, 1.2, 0.9, 1.3, 1.5], [1.0] * 5, [3, 2], entropies=entropies)
    upper = load_objective("quantile", {"share": 0.6, "J": "M*A*w"})  # 0.34
    assert loss_of(upper, batch).loss.item() == pytest.approx(-(1.3 + 1.5) / 5)
    erf = load_objective("erf", {"width": 1})
    slopes = [2 / 3.141592653589793**0.5 * r * 2.718281828459045 ** -((r - 1) ** 2) for r in (1.1, 1.2, 0.9, 1.3, 1.5)]
    assert coefficients(erf, batch).tolist() == pytest.approx(slopes)


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
    assert torch.equal(gradient(mine(J="A*exp(soft(d))")), gradient(mine(J="A*exp(soft(d, 2))")))
    plain = gradient(Objective("mine", {"A": A, "J": "A*exp(3*(2*sigmoid(2*d/3) - 1))"}, {}))
    torch.testing.assert_close(gradient(mine()), plain)


# mistakes -------------------------------------------------------------------------------------------------------------
DECORATOR, DEF = '@function(takes="token number?", gives="token")', "def soft(layout, x, width=2.0):"


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        (DEF, "def soft(layout, x, width=2.0:", "not valid Python: ", "width=2.0:"),
        (f"{DECORATOR}\n", "", "the file declares no function", ""),
        ("token number?", "tokn", "unknown word for what soft takes or gives 'tokn'", DEF),
        ('gives="token"', 'gives="number"', "gives a number of its micro-batch", DEF),
        (DEF, "def soft(x, width=2.0):", 'takes "token number?", and has the arguments (x, width=2.0)', "def soft"),
    ],
)
def test_a_mistake_in_a_declaration_has_its_line(old: str, new: str, said: str, line: str) -> None:
    text = FILE.replace(old, new)
    with pytest.raises(UserError) as caught:
        mine(text)
    assert said in str(caught.value)
    number = next((number for number, one in enumerate(text.splitlines(), 1) if line and line in one), None)
    assert caught.value.where == (f"own.py:{number}" if number else "own.py")


STATE = {  # what the body of a function does, what stands in front of it, and what changes
    "mean": ("global mean\n    mean = 0.9*mean + 0.1*float(x.detach().mean())", "mean = 0.0"),
    "by_size": ("by_size.setdefault('last', x.detach().clone())", "by_size = {}"),
    "box": ("box.value += 1", "class Box:\n    value = 0\nbox = Box()"),
    "soft": ("soft.calls = getattr(soft, 'calls', 0) + 1", ""),
    "steps": ("next(steps)", "import itertools\nsteps = itertools.count()"),
}


@pytest.mark.parametrize("name", STATE)
def test_what_is_kept_from_call_to_call_is_refused(name: str) -> None:
    body, before = STATE[name]
    text = FILE.replace("@function", f"{before}\n\n@function")
    with pytest.raises(UserError, match=f"calls of the functions change {name}:") as caught:
        check_runs(mine(text.replace("    return width", f"    {body}\n    return width")))
    assert caught.value.where == "own.py"


def test_what_stays_the_same_may_be_kept() -> None:
    """Tables at the top, a cache, a circle and a NaN."""
    before = (
        "import functools\nfrom dataclasses import dataclass\ntable = {'a': [float('nan'), torch.ones(3)]}\n"
        "table['itself'] = table\n@dataclass\nclass Place:\n    x: int = 1\nplace = Place()\n"
        "@functools.cache\ndef half(size):\n    return torch.full((size,), 0.5)\n"
    )
    text = FILE.replace("@function", f"{before}\n@function")
    check_runs(mine(text.replace("    return width", "    half(place.x)\n    return width")))


@pytest.mark.parametrize(
    ("code", "said", "line"),
    [  # where: its `def`, or the line of an exception
        ("x.tolist()", "soft gives list; expected: float64 [24] on cpu, one per token", 6),
        ("layout.lengths.double()", "values[layout.sequence] gives each token the number of its response", 6),
        ("x.tahn()", "soft: AttributeError: 'Tensor' object has no attribute 'tahn'", 10),
        ("x*layout.all_sum(x.sum())", "only a function whose name ends with _r or _b looks", 10),
    ],
)
def test_what_a_function_gives_is_checked(code: str, said: str, line: int) -> None:
    with pytest.raises(UserError) as caught:
        gradient(mine(FILE.replace(RETURN, f"    return {code}")))
    assert said in str(caught.value)
    assert caught.value.where == f"own.py:{line}"


# files ----------------------------------------------------------------------------------------------------------------
CODE = examples()["erf"]["functions/erf.py"]


@pytest.fixture
def own(folder: Path) -> Path:
    """A folder of TEPO_PATH with functions/erf.py and an objective that calls its function."""
    return follow("erf", folder)


def changed(own: Path, old: str, new: str) -> Path:
    """The file with one piece of its code replaced."""
    assert old in CODE
    return write(own / "functions/erf.py", CODE.replace(old, new))


def test_the_content_is_part_of_the_id_and_the_location_is_not(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_id(compose(["objective=erf"]))
    monkeypatch.chdir(own)
    for named in ("erf", "functions/erf.py", str(own / "functions" / "erf.py")):  # on the command line
        config = compose(["objective=grpo_dapo", f"objective.functions={named}", "objective.J=A*erf((w - 1)/0.3)"])
        assert run_id(config) == first
        assert list(config.objective["functions"].values()) == [CODE]
    row = (own / "objective" / "erf.yaml").read_text()
    write(own / "functions/other_name.py", CODE)
    write(own / "objective/erf.yaml", row.replace("functions: erf", "functions: other_name"))
    assert run_id(compose(["objective=erf"])) == first
    write(own / "functions/other_name.py", CODE.replace("x.erf()", "x.sin()"))
    assert run_id(compose(["objective=erf"])) != first
    (own / "functions" / "other_name.py").unlink()
    with pytest.raises(UserError, match="unknown file of functions 'other_name'"):
        compose(["objective=erf"])


def test_a_run_keeps_the_text_and_executes_no_strange_file(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, elsewhere = own / "executed", own / "elsewhere.py"
    path = changed(own, "return x.erf()", f"open({str(mark)!r}, 'w')\n    return x.erf()")
    config = compose(["objective=erf", f"store={own}/runs"])
    run = RunFolder.of(config)
    run.create(config, identity(config))
    stored = json.loads(run.config_file.read_text())["full"]["objective"]
    assert kept_row(stored, run.path).formula.digest == load_objective("erf").digest  # his own file
    path.unlink()
    (own / "objective" / "erf.yaml").unlink()
    assert identity(config)["config"]["objective"] == row_of(stored).formula.digest  # needs no file
    with pytest.raises(UserError, match="the run keeps Python that is not in functions/ of your TEPO_PATH"):
        kept_row(stored, run.path)
    write(elsewhere, CODE)
    in_place_of_the_text = {**stored, "functions": str(elsewhere)}
    with pytest.raises(UserError, match=r"elsewhere\.py"):
        kept_row(in_place_of_the_text, run.path)
    assert not mark.exists()

    def swapped(objective: Mapping[str, Any]) -> list[str]:
        elsewhere.write_text(path.name)  # after it was looked at
        return []

    monkeypatch.setattr("tepo.formula.row.foreign_files", swapped)
    kept = kept_row(in_place_of_the_text, run.path)
    assert list(kept.functions.values()) == [CODE], "what was looked at is what is executed"


@pytest.mark.parametrize(
    ("old", "new", "said", "line"),
    [
        ('takes="any"', 'takes="anything"', "unknown word for what erf takes or gives 'anything'", "def erf"),
        ("x.erf()", "x.erf().double()", "erf gives float64 [96] on cpu; expected: float32 [96]", "def erf"),
    ],
)
def test_training_says_what_is_wrong_before_it_starts(own: Path, old: str, new: str, said: str, line: str) -> None:
    path = changed(own, old, new)
    with pytest.raises(UserError) as caught:
        check_settings(Run(compose(["objective=erf"])))
    assert said in caught.value.what
    number = next(number for number, text in enumerate(path.read_text().splitlines(), 1) if line in text)
    assert caught.value.where == f"{path}:{number}"
    assert caught.value.exit_code == 2


def test_the_command_ends_with_the_code_of_the_outcome(own: Path) -> None:
    good = CliRunner().invoke(app, ["explain", "erf", "--check"])
    assert (good.exit_code, good.output.count("pass")) == (0, len(CHECKS))
    changed(own, "x.erf()", "x.erf() - x.mean()")
    bad = CliRunner().invoke(app, ["explain", "erf", "--check"])
    assert bad.exit_code == 1
    assert "micro-batches" in bad.output
