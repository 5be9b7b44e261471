"""A kind of one's own on each axis, from the page alone; what it lacks, and what its functions return instead of what
the axis asks for, is said at once with its place."""

from pathlib import Path

import pytest
import torch

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.objectives import load_objective
from tepo.objectives.loading import AXES, parts_of
from tepo.objectives.members import PROTOCOLS, members
from tepo.objectives.plugins import kinds_of
from tepo.objectives.testing.case import make_case
from tepo.objectives.testing.checks import check_objective
from tepo.training.preflight import check_settings
from tests.integration.commands import tepo
from tests.unit.objectives.own_kinds import examples, follow

NAMES = list(examples())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


def test_the_page_has_an_example_of_each_axis() -> None:
    shown = [axis for files in examples().values() for axis in kinds_of("example", files[min(files)])]
    assert set(shown) == set(AXES) == set(PROTOCOLS)
    assert len(NAMES) == 9  # an advantage of responses, and one of tokens


@pytest.mark.parametrize("name", NAMES)
def test_an_example_passes_every_check(name: str, folder: Path) -> None:
    follow(name, folder)
    objective = load_objective(name)
    assert [check for check in check_objective(objective) if check.wrong] == []
    own = [axis for axis, part in parts_of(objective) if type(part).__module__.startswith("tepo_own_kinds_")]
    assert len(own) == 1


def broken(name: str, folder: Path, old: str, new: str) -> UserError:
    """What training says, before it starts, of an example with one piece of its code replaced."""
    path = follow(name, folder) / "kinds" / f"{name}.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError) as caught:
        check_settings(compose([f"objective={name}"]))
    assert caught.value.exit_code == 2
    return caught.value


def line_of(folder: Path, name: str, text: str) -> str:
    path = folder / "kinds" / f"{name}.py"
    return f"{path}:{next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)}"


BARE = """from dataclasses import dataclass


@dataclass(frozen=True)
class Bare:
    pass


"""


@pytest.mark.parametrize("axis", AXES)
def test_all_that_a_class_lacks_is_named_at_once_with_its_types(axis: str) -> None:
    text = f"{BARE}KINDS = {{{axis!r}: {{'bare': Bare}}}}\n"
    with pytest.raises(UserError) as caught:
        kinds_of("bare.py", text)
    assert caught.value.where == "bare.py:5"
    for member in members(axis):
        assert f"`{member}: " in caught.value.what or f"`def {member}(self" in caught.value.what
    assert caught.value.what.count("lacks") == len(members(axis))


def test_types_of_members_are_those_of_the_protocol(folder: Path) -> None:
    error = broken("median", folder, "    varies = False\n", "")
    assert error.what == "advantage 'median' lacks `varies: bool`"
    assert error.where == line_of(folder, "median", "class Median")
    error = broken(
        "median", folder, "    def current(self, advantages: Tensor, batch: TokenBatch)", "    def now(self)"
    )
    assert "lacks `def current(self, advantages: Tensor, batch: TokenBatch) -> Tensor`" in error.what


def test_a_class_on_the_wrong_axis_is_told_its_own(folder: Path) -> None:
    error = broken("median", folder, 'KINDS = {"advantage"', 'KINDS = {"surrogate"')
    assert "surrogate 'median' lacks `only_ratio: Ratio | None`, and lacks `through_ratio: bool`" in error.what
    assert 'KINDS = {"advantage": …} where it is one of that axis' in error.fix


def test_a_function_that_should_be_a_property(folder: Path) -> None:
    error = broken("late", folder, "    @property\n", "")
    assert error.what == "advantage 'late' has 'explained' as a function without @property, not as `explained: Part`"
    assert error.where == line_of(folder, "late", "def explained")


def test_other_arguments_and_a_missing_member_are_said_together(folder: Path) -> None:
    error = broken(
        "late",
        folder,
        "    varies = True\n\n    def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None)",
        "    def advantages(self, rewards)",
    )
    assert "lacks `varies: bool`, and has 'advantages' as `def advantages(self, rewards) -> Tensor`, not" in error.what
    assert "`def advantages(self, rewards: Tensor, groups: Groups, comm: Comm | None) -> Tensor`" in error.what
    assert error.where == line_of(folder, "late", "def advantages")


RETURNED = [  # example, code, other code, what is returned, what is expected, in which function
    (
        "median",
        "made[groups.sequence]",
        "made",
        "'advantages' returns a tensor of the shape [9]",
        "float [N] = [24], one a response token",
        "def advantages",
    ),
    ("median", "made[groups.sequence]", "made.tolist()", "'advantages' returns list", "Tensor", "def advantages"),
    (
        "median",
        "made[groups.sequence]",
        "made[groups.sequence] > 0",
        "'advantages' returns a tensor of bool",
        "float [N]",
        "def advantages",
    ),
    (
        "median",
        "made[groups.sequence]",
        "(made / 0)[groups.sequence]",
        "'advantages' returns nan for response 0, whose reward is 1",
        "finite numbers, where all rewards are",
        "def advantages",
    ),
    (
        "median",
        "return advantages ",
        "return advantages[:1] ",
        "'current' returns a tensor of the shape [1]",
        "float [N] = [24]",
        "def current",
    ),
    (
        "deduct",
        "(~groups.finished).double()",
        "(~groups.finished).double().log()",
        "'shaped_rewards' returns inf for response",
        "finite numbers",
        "def shaped_rewards",
    ),
    (
        "power",
        "(self.exponent * d).exp()",
        "(self.exponent * d).exp().mean()",
        "'importance_ratio' returns a tensor of the shape []",
        "float [N] = [24]",
        "def importance_ratio",
    ),
    (
        "squash",
        "return Gain((terms.ratio - 1).tanh() * terms.advantages)",
        "return (terms.ratio - 1).tanh()",
        "'gain' returns Tensor",
        "Gain",
        "def gain",
    ),
    (
        "squash",
        "* terms.advantages)",
        "* terms.advantages, terms.ratio)",
        "'gain' returns `clipped` as a tensor of float64",
        "bool [N] = [24]",
        "def gain",
    ),
    (
        "rare",
        "return 1 + self.strength * (1 - terms.batch.old_logprobs.exp())",
        "return terms.batch.lengths",
        "'token_weights' returns a tensor of the shape [9]",
        "float [N] = [24]",
        "def token_weights",
    ),
    (
        "smooth",
        "return 2 *",
        "return 2 + 0 * batch.lengths #",
        "'weights' returns a tensor of the shape [9]",
        "float [N] = [24]",
        "def weights",
    ),
    (
        "square",
        "total(scale * terms.d**2 / 2)",
        "scale * terms.d**2 / 2",
        "'term' returns no single number as `total`",
        "without dimensions",
        "def term",
    ),
    ("root", "[batch.sequence]", "", "'scale' returns a tensor of the shape [9]", "float [N] = [24]", "def scale"),
]


@pytest.mark.parametrize(("name", "old", "new", "what", "expected", "function"), RETURNED)
def test_what_a_function_returns_is_checked_with_its_place(
    name: str, old: str, new: str, what: str, expected: str, function: str, folder: Path
) -> None:
    error = broken(name, folder, old, new)
    returned, _, wanted = error.what.partition("; expected: ")
    assert returned.startswith(what)
    assert expected in wanted
    assert error.where == line_of(folder, name, function)


def test_one_number_a_response_is_told_how_to_become_one_a_token(folder: Path) -> None:
    assert broken("median", folder, "made[groups.sequence]", "made").fix.startswith("`values[groups.sequence]` gives")
    assert broken("root", folder, "[batch.sequence]", "").fix.startswith("`values[batch.sequence]` gives")


def test_a_nan_reward_may_pass(folder: Path) -> None:
    """It makes the loss NaN, where training stops: no kind is to blame."""
    follow("median", folder)
    case = make_case(0)
    case.rewards[0] = torch.nan
    assert load_objective("median").advantages(case.groups()).isnan().any()


def test_the_command_prints_the_options_of_own_kinds_too(folder: Path) -> None:
    follow("late", folder)
    printed = tepo("explain", "late", "--options", "advantage").stdout
    assert "kind: late\n  R_i less the group's mean" in printed
    assert "    start = 0.5  (a number from 0 to 1)\n        share at the first token [a choice]" in printed
    assert "kind: late" not in tepo("explain", "--options", "advantage").stdout
    every = tepo("explain", "--options", "all").stdout
    for axis, asked in PROTOCOLS.items():
        assert f'KINDS = {{"{axis}": …}}, has' in every, asked
    wrong = tepo("explain", "--options", "advantages", code=2)
    assert "did you mean 'advantage'?" in wrong.stderr
    assert "no objective is named" in tepo("explain", code=2).stderr
