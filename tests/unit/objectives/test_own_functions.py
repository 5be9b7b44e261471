from pathlib import Path

import pytest
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.formula.row import load_row
from tepo.formula.typeset import to_latex
from tepo.objectives import Groups, Objective, load_objective
from tepo.objectives.check import check_objective, check_runs, unsplit
from tepo.objectives.explain import to_text
from tepo.objectives.testing.case import make_case
from tests.support.runs import write
from tests.unit.objectives.flat import by_hand, coefficients
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


def mine(text: str = FILE, J: str = "A*exp(soft(d, 3))", file: str = "own.py", **lines: str) -> Objective:
    return Objective("mine", {"A": A, **lines, "J": J}, {}, functions={file: text})


def gradient(objective: Objective) -> Tensor:
    case = make_case(5)
    return unsplit(objective, case, case.batch(objective))[0]


# the page -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", examples())
def test_an_example_passes_every_check(name: str, folder: Path) -> None:
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
    assert upper.loss(batch, upper.prepare(batch)).loss.item() == pytest.approx(-(1.3 + 1.5) / 5)
    erf = load_objective("erf", {"width": 1})
    slopes = [2 / 3.141592653589793**0.5 * r * 2.718281828459045 ** -((r - 1) ** 2) for r in (1.1, 1.2, 0.9, 1.3, 1.5)]
    assert coefficients(erf, batch).tolist() == pytest.approx(slopes)


def test_a_function_sees_the_place_of_each_token_in_its_response() -> None:
    batch = by_hand([1.1, 1.2, 0.9, 1.3, 1.5], [1.0] * 5, [3, 2])
    text = FILE.replace("width * torch.tanh(x / width)", "x * (layout.positions == 1) * (layout.sequence + 2)")
    second = mine(text, "A*exp(soft(d))")
    gains = [1.0, 1.2**2, 1.0, 1.0, 1.5**3]
    assert second.loss(batch, second.prepare(batch)).loss.item() == pytest.approx(-sum(gains) / 5)


def test_the_example_of_the_repository_needs_no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """w A - |A| (w - 1)^2 / 0.4, and its slope w (A - |A| (w - 1) / 0.2), by hand."""
    monkeypatch.setenv("TEPO_PATH", str(EXAMPLE))
    objective = load_objective("my_spo")
    batch = by_hand([1.0, 1.1, 0.9, 1.3, 1.2], [1.0, 2.0, -1.0, -0.5, 1.0])
    gains = [1.0, 2.2 - 0.05, -0.9 - 0.025, -0.65 - 0.1125, 1.2 - 0.1]
    assert objective.loss(batch, objective.prepare(batch)).loss.item() == pytest.approx(-sum(gains) / 5)
    slopes = [1.0, 1.1 * (2 - 1), 0.9 * (-1 + 0.5), 1.3 * (-0.5 - 0.75), 0.0]
    assert coefficients(objective, batch).tolist() == pytest.approx(slopes, abs=1e-12)
    assert not list(EXAMPLE.rglob("*.py"))
    page = (EXAMPLE.parents[1] / "docs" / "own-method.md").read_text()
    assert f"```yaml\n{(EXAMPLE / 'objective' / 'my_spo.yaml').read_text()}```" in page


def test_they_are_explained(folder: Path) -> None:
    follow("quantile", folder)
    row = load_row("quantile")
    assert "before the first backward pass\n  quantile_b(H, share)\n" in to_text(row)
    assert r"\operatorname{quantile\_b}(H_{i,t}, \mathrm{share})" in to_latex(row)


# what a row is with it ------------------------------------------------------------------------------------------------
def test_a_file_is_executed_for_a_number_alone(tmp_path: Path) -> None:
    objective = mine(f"open({str(tmp_path / 'executed')!r}, 'w')\n{FILE}")
    assert objective.digest
    assert objective.needs
    assert objective._builder.functions["soft"].doc == "Softened."
    assert not (tmp_path / "executed").exists()
    check_runs(objective)
    assert (tmp_path / "executed").exists()


def test_an_argument_that_may_be_left_out() -> None:
    assert torch.equal(gradient(mine(J="A*exp(soft(d))")), gradient(mine(J="A*exp(soft(d, 2))")))
    plain = gradient(Objective("mine", {"A": A, "J": "A*exp(3*(2*sigmoid(2*d/3) - 1))"}, {}))
    torch.testing.assert_close(gradient(mine()), plain)


LIKE = "like: grpo_dapo\nfunctions: {}\nformula: {{J: A*exp(soft(d))}}\n"


def test_what_is_like_a_row_has_its_functions(folder: Path) -> None:
    write(folder / "functions/soft.py", FILE)
    write(folder / "objective/mine.yaml", LIKE.format("soft"))
    below = load_row(write(folder / "objective/below.yaml", "like: mine\nformula: {J: 2*A*exp(soft(d))}\n"))
    assert list(below.formula.mapping["functions"].values()) == [FILE]
    away = load_row(write(folder / "objective/away.yaml", "like: mine\nformula: {J: A*d}\n"))
    assert away.formula.digest == load_row("grpo_dapo", {"J": "A*d"}).formula.digest
    assert "functions" not in away.formula.mapping
    unread = write(folder / "objective/unread.yaml", "like: mine\nfunctions: soft\nformula: {J: A*d}\n")
    with pytest.raises(UserError, match=r"nothing reads .*soft\.py") as caught:
        _ = load_row(unread).formula
    assert caught.value.where == f"{unread}:2 (functions)"


def test_the_command_line_names_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "functions/soft.py", FILE)
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match="did you mean 'soft'"):
        load_objective("grpo_dapo", {"functions": "sooft"})
    with pytest.raises(UserError, match=r"nothing\.py cannot be read"):
        load_objective("grpo_dapo", {"functions": "nothing.py"})
    with pytest.raises(UserError, match="functions names Python files, not 3"):
        load_objective({"like": "grpo_dapo", "functions": 3})


# mistakes -------------------------------------------------------------------------------------------------------------
DECORATOR, DEF = '@function(takes="token number?", gives="token")', "def soft(layout, x, width=2.0):"
DECLARED = [  # what is replaced, by what, what is said, the line with it
    (DEF, "def soft(layout, x, width=2.0:", "not valid Python: ", "width=2.0:"),
    (f"{DECORATOR}\n", "", "the file declares no function", ""),
    (DECORATOR, "@function", "soft does not say what it takes and gives", DEF),
    ("token number?", "tokn", "unknown word for what soft takes or gives 'tokn'", DEF),
    ("token number?", "number? token", "leaves out what cannot be", DEF),
    ("token number?", "any number?", "takes `any` without giving `same`", DEF),
    ('gives="token"', 'gives="number"', "gives a number of its micro-batch", DEF),
    ("token number?", "response number?", "is of the loss, where it takes and gives values of tokens", DEF),
    (DEF, "def H_old(layout, x, width=2.0):", "has the name of a given value", "def H_old"),
    (DEF, "def soft_t(layout, x, width=2.0):", "has a name that cannot be", "def soft_t"),
    (DEF, "def soft(x, width=2.0):", 'takes "token number?", and has the arguments (x, width=2.0)', "def soft"),
]  # fmt: skip


STATE = {  # what the body of a function does, what stands in front of it, and what changes
    "mean": ("global mean\n    mean = 0.9*mean + 0.1*float(x.detach().mean())", "mean = 0.0"),
    "seen": ("seen.append(len(x))", "seen = []"),
    "by_size": ("by_size.setdefault('last', x.detach().clone())", "by_size = {}"),
    "box": ("box.value += 1", "class Box:\n    value = 0\nbox = Box()"),
    "soft": ("soft.calls = getattr(soft, 'calls', 0) + 1", ""),
    "steps": ("next(steps)", "import itertools\nsteps = itertools.count()"),
    "later": ("global later\n    later = 1", ""),
}


@pytest.mark.parametrize("name", STATE)
def test_what_is_kept_from_call_to_call_is_refused(name: str) -> None:
    body, before = STATE[name]
    text = FILE.replace("@function", f"{before}\n\n@function")
    with pytest.raises(UserError, match=f"calls of the functions change {name}:") as caught:
        check_runs(mine(text.replace("    return width", f"    {body}\n    return width")))
    assert caught.value.where == "own.py"


def test_a_file_that_raises_is_named_with_its_line() -> None:
    with pytest.raises(UserError, match="ZeroDivisionError") as caught:
        check_runs(mine(FILE + "1/0\n"))
    assert caught.value.where == f"own.py:{FILE.count(chr(10)) + 1}"


def test_what_stays_the_same_may_be_kept() -> None:
    """Tables at the top, a cache, a circle and a NaN."""
    before = (
        "import functools\nfrom dataclasses import dataclass\ntable = {'a': [float('nan'), torch.ones(3)]}\n"
        "table['itself'] = table\n@dataclass\nclass Place:\n    x: int = 1\nplace = Place()\n"
        "@functools.cache\ndef half(size):\n    return torch.full((size,), 0.5)\n"
    )
    text = FILE.replace("@function", f"{before}\n@function")
    check_runs(mine(text.replace("    return width", "    half(place.x)\n    return width")))


@pytest.mark.parametrize(("old", "new", "said", "line"), DECLARED)
def test_a_mistake_in_a_declaration_has_its_line(old: str, new: str, said: str, line: str) -> None:
    assert old in FILE
    text = FILE.replace(old, new)
    with pytest.raises(UserError) as caught:
        mine(text)
    assert said in str(caught.value)
    number = next((number for number, one in enumerate(text.splitlines(), 1) if line and line in one), None)
    assert caught.value.where == (f"own.py:{number}" if number else "own.py")


def test_no_two_things_have_one_name() -> None:
    with pytest.raises(UserError, match=r"soft is declared in own\.py:6 too") as caught:
        Objective("mine", {"A": A, "J": "A*soft(d)"}, {}, functions={"own.py": FILE, "two.py": f"\n{FILE}"})
    assert caught.value.where == "two.py:7"
    with pytest.raises(UserError, match="'soft' has a meaning already and cannot be defined"):
        mine(soft="d")
    with pytest.raises(UserError, match="the constant 'soft' has a meaning"):
        Objective("mine", {"A": A, "J": "A*soft*d"}, {"soft": 1.0}, functions={"own.py": FILE})


CALLS = [
    ("soft(d, 1)*A", "did you mean 'sofd'?", FILE.replace("soft", "sofd")),
    ("soft(mean_i(d))*A", "tokens(…) puts a response's value on each of its tokens", FILE),
    ("soft_g(d)*A", "soft_g is of the rollout, and d is of the loss", FILE.replace("soft", "soft_g")),
]  # fmt: skip


@pytest.mark.parametrize(("J", "said", "text"), CALLS)
def test_a_mistake_in_a_call_has_a_caret(J: str, said: str, text: str) -> None:
    with pytest.raises(UserError) as caught:
        mine(text, J)
    assert said in str(caught.value)
    assert "^" in caught.value.what


RETURN = "    return width * torch.tanh(x / width)"
FOUND = [  # what the function gives, what is said, where: its `def`, or the line of an exception
    ("x.tolist()", "soft gives list; expected: float64 [24] on cpu, one per token", 6),
    ("layout.lengths.double()", "`?values[layout.sequence] gives each token the number of its response", 6),
    ("x.to('meta')", "soft gives float64 [24] on meta; expected: float64 [24] on cpu", 6),
    ("x.tahn()", "soft: AttributeError: 'Tensor' object has no attribute 'tahn'", 10),
    ("layout.groups", "soft: RuntimeError: only a function whose name ends with _g or _r sees groups", 10),
    ("x*layout.all_sum(x.sum())", "soft: RuntimeError: only a function whose name ends with _r or _b looks", 10),
]


@pytest.mark.parametrize(("code", "said", "line"), FOUND)
def test_what_a_function_gives_is_checked(code: str, said: str, line: int) -> None:
    with pytest.raises(UserError) as caught:
        gradient(mine(FILE.replace(RETURN, f"    return {code}")))
    assert said.removeprefix("`?") in str(caught.value)
    assert caught.value.where == f"own.py:{line}"


IN_A_ROLLOUT = [  # name, what it takes and gives, what it returns, what is said
    ("f_g", "response", "response", "x.float()", "f_g gives float32 [9] on cpu; expected: float64 [9]"),
    ("f_r", "response", "number", "x", "f_r gives float64 [9] on cpu; expected: float64 [] on cpu, a single"),
    ("f_g", "any", "same", "x.sum()", "f_g gives float64 [] on cpu; expected: float64 [9] on cpu, as its"),
]


@pytest.mark.parametrize(("name", "takes", "gives", "code", "said"), IN_A_ROLLOUT)
def test_what_a_function_of_a_rollout_gives_is_checked(name: str, takes: str, gives: str, code: str, said: str) -> None:
    text = f"@function(takes='{takes}', gives='{gives}')\ndef {name}(layout, x):\n    return {code}\n"
    made = mine(f"from tepo.objectives import function\n{text}", "A*d", A=f"R*{name}(R)")
    with pytest.raises(UserError) as caught:
        made.advantages(make_case(5).groups())
    assert said in caught.value.what
