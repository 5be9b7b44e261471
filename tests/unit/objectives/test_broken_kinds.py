"""Kinds with one fault each, as a user might write them: `tepo check-objective` names the fault and its line.

Each is a whole file that loads and trains; without its fault it passes every check."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tepo.objectives import load_objective
from tepo.objectives.testing.checks import Check, check_objective
from tests.integration.commands import tepo

HEAD = """
from dataclasses import dataclass

import torch

from tepo.objectives import Gain, Line, Needs, Part
from tepo.objectives.batch import all_sum
from tepo.objectives.axes.moments import group_moments
from tepo.objectives.axes.penalty import Selection, Term
from tepo.objectives.segments import total


@dataclass(frozen=True)
class Mine:
    needs = Needs()
"""
ADVANTAGE = """
    varies = False
    explained = Part(definitions=(Line("A = R_i - mean over the group", "A = R_i - m"),))

    def advantages(self, rewards, groups, comm):
        centred = group_moments(rewards, groups.group_ids).normalize(rewards, 0.0, std=False)
        return centred[groups.sequence]

    def current(self, advantages, batch):
        return advantages
"""
GPG = ADVANTAGE.replace(
    "return centred[groups.sequence]",
    """mixed = group_moments(groups.rewards, groups.group_ids).mixed
        totals = all_sum(torch.stack([mixed.new_ones(len(mixed)).sum(), mixed.sum()]).double(), comm)
        return (centred * totals[0] / totals[1].clamp(min=1))[groups.sequence]""",
)
SCALED = ADVANTAGE.replace(
    "return centred[groups.sequence]",
    """squares, count = all_sum(torch.stack([(rewards**2).sum(), torch.ones_like(rewards).sum()]), comm)
        return (centred / (squares / count).sqrt().clamp(min=1e-6))[groups.sequence]""",
)
SURROGATE = """
    only_ratio = None
    through_ratio = True

    def gain(self, terms):
        return Gain(terms.ratio * terms.advantages)

    def explained(self, carried):
        text = f"{carried.ratio.explained.formula.text} A"
        return Part(Line(text, text), coefficient=carried.through_ratio(carried.amount), zero="A = 0")
"""
WEIGHT = """
    drops = False
    scope = "mini_batch"
    explained = Part(
        Line("lambda_t ", "l_t "), (Line("lambda_t = 2 where A > 0, 1 elsewhere", "l = 2, 1"),), ("lambda_t",)
    )

    def token_weights(self, terms, clipped, comm, salt):
        return torch.where(terms.advantages > 0, 2.0, 1.0).to(terms.advantages.dtype)
"""
PENALTY = """
    in_loss = 0.01
    selects = "mini_batch"
    reports_size = False
    explained = Part(
        Line("- 0.01 e^2/2 M", "e"),
        (Line("e = log pi_t - log pi_old,t", "e"), Line("M = 1 where A > 0, 0 elsewhere", "M")),
        coefficient="- 0.01 M e",
    )

    def select(self, terms, comm, salt):
        return Selection(terms.advantages > 0)

    def term(self, terms, chosen, scale):
        mask = terms.advantages > 0 if chosen is None else chosen.mask
        return Term(total(torch.where(mask, scale * terms.d**2 / 2, 0.0)), "actor/kl_loss", {})
"""
SOUND = {"advantage": ADVANTAGE, "surrogate": SURROGATE, "weight": WEIGHT, "penalty": PENALTY}


class Fault(NamedTuple):
    """axis: of the kind. old, new: what is wrong in its file. check, says: which finds it, and a part of its words.
    line: of the file, that the message names."""

    axis: str
    old: str
    new: str
    check: str
    says: str
    line: str
    sound: str = ""


OWN = "explained = Part(definitions=(Line("
FAULTS = {
    "gpg without comm": Fault(
        "advantage", ".double(), comm)", ".double(), None)", "ranks", "`comm`", "def advantages", GPG,
    ),
    "a rollout's mean without comm": Fault(
        "advantage", ".sum()]), comm)", ".sum()]), None)", "ranks", "`comm`",
        "def advantages",
        SCALED,
    ),
    "never applied": Fault(
        "weight", 'scope = "mini_batch"', "scope = None", "members", "is never applied: scope is None",
        "def token_weights"
    ),
    "never selects": Fault(
        "penalty", 'selects = "mini_batch"', "selects = None", "members", "is never applied: selects is None",
        "def select"
    ),
    "no such scope": Fault("weight", '"mini_batch"', '"minibatch"', "members", "is 'minibatch'", "scope ="),
    "zeros": Fault("weight", "2.0, 1.0", "2.0, 0.0", "members", "some of its factors are 0", "drops ="),
    "float32": Fault(
        "surrogate", "Gain(terms.ratio * terms", "Gain((40 * terms.d).exp() / 40 * terms", "finite",
        "log-ratios of 20: the loss is nan in float32", "class Mine",
    ),
    "varies": Fault(
        "advantage", "centred[groups.sequence]", "centred[groups.sequence] * (1 + groups.positions)", "members",
        "the advantages of one response differ", "varies =",
    ),
    "nan ratio": Fault(
        "surrogate", "Gain(terms.ratio", "Gain(torch.nan_to_num(terms.ratio)", "nan", "a NaN in `logprobs`",
        "class Mine"
    ),
    "nan advantage": Fault(
        "surrogate", "* terms.advantages", "* torch.nan_to_num(terms.advantages)", "nan", "a NaN in `advantages`",
        "class Mine",
    ),
    "nan reward": Fault(
        "advantage", "centred[groups.sequence]", "torch.nan_to_num(centred)[groups.sequence]", "nan", "a NaN reward",
        "def advantages",
    ),
    "raw rewards": Fault(
        "advantage", "centred[groups.sequence]", "rewards[groups.sequence]", "baseline",
        "equal rewards of a group give an advantage of 1, not 0", "def advantages",
    ),
    "a gradient in the advantages": Fault(
        "advantage", "return advantages", "return advantages - 0.01 * batch.logprobs", "members", "carries a gradient",
        "def current",
    ),
    "a gradient into old log-probs": Fault(
        "surrogate", "return Gain(terms.ratio",
        "old = terms.batch.old_logprobs.clone().requires_grad_()\n        return Gain((terms.logprobs - old).exp()",
        "members", "a gradient flows into a tensor [96] that is not the policy's", "class Mine",
    ),
    "an anchor that is not detached": Fault(
        "surrogate", "return Gain(terms.ratio",
        "old = (terms.logprobs + terms.batch.old_logprobs) / 2\n        return Gain((terms.logprobs - old).exp()",
        "explained", "the coefficient `r_t A` is", "def explained",
    ),
    "another sign": Fault(
        "surrogate", "carried.through_ratio(carried.amount)", '"- r_t A"', "explained", "the coefficient `- r_t A` is",
        "def explained",
    ),
    "a factor of 100": Fault(
        "surrogate", "carried.through_ratio(carried.amount)", '"100 r_t A"', "explained",
        "the coefficient `100 r_t A` is",
        "def explained",
    ),
    "another formula": Fault(
        "surrogate", "carried.through_ratio(carried.amount)", '"A"', "explained", "the coefficient `A` is",
        "def explained"
    ),
    "a penalty's sign": Fault(
        "penalty", "- 0.01 M e", "+ 0.01 M e", "explained", "the coefficient `+ 0.01 M e` is", "explained ="
    ),
    "a formula nobody reads": Fault(
        "advantage", OWN, 'explained = Part(Line("R_i - m", "R_i - m"), definitions=(Line(', "explained",
        "has `formula`, which nothing reads of this axis", "explained =",
    ),
    "a coefficient nobody reads": Fault(
        "weight", '("lambda_t",)\n', '("lambda_t",), "lambda_t"\n', "explained",
        "has `coefficient`, which nothing reads of this axis", "explained =",
    ),
    "a formula beside explained": Fault(
        "surrogate", "only_ratio = None", 'only_ratio = None\n    formula = "r_t A"', "explained", "is read by nothing",
        "formula =",
    ),
    "a factor that J leaves out": Fault(
        "weight", 'Line("lambda_t ", "l_t ")', 'Line("", "")', "explained", "J is printed without its factor",
        "explained ="
    ),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("kinds", "objective"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


def written(folder: Path, axis: str, body: str) -> list[str]:
    """The lines of kinds/own.py with this class, which objective/mine.yaml takes beside shipped kinds."""
    text = f'{HEAD}{body}\n\nKINDS = {{"{axis}": {{"mine": Mine}}}}\n'
    (folder / "kinds" / "own.py").write_text(text)
    kinds = {"advantage": "group_normalized", "ratio": "token", "surrogate": "unclipped", "aggregation": "token_mean"}
    rows = [f"{name}: {kind}\n" for name, kind in {"kinds": "own", **kinds, axis: "mine"}.items()]
    (folder / "objective" / "mine.yaml").write_text("".join(rows))
    return text.splitlines()


def failed() -> list[Check]:
    return [check for check in check_objective(load_objective("mine")) if check.wrong]


@pytest.mark.parametrize(("axis", "body"), [*SOUND.items(), ("advantage", GPG), ("advantage", SCALED)])
def test_a_kind_without_a_fault_passes(axis: str, body: str, folder: Path) -> None:
    written(folder, axis, body)
    assert failed() == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_place(name: str, folder: Path) -> None:
    fault = FAULTS[name]
    sound = fault.sound or SOUND[fault.axis]
    assert fault.old in sound
    lines = written(folder, fault.axis, sound.replace(fault.old, fault.new))
    line = next(number for number, text in enumerate(lines, 1) if fault.line in text)
    found = {check.name: check.wrong for check in failed()}
    assert fault.check in found, found
    assert fault.says in found[fault.check]
    assert f"{folder}/kinds/own.py:{line}" in found[fault.check]


def test_rewards_without_a_baseline_are_declared(folder: Path) -> None:
    written(folder, "advantage", ADVANTAGE.replace("centred[groups", "rewards[groups") + "    baseline = False\n")
    assert failed() == []


def test_a_coefficient_in_words_is_said_not_to_be_compared(folder: Path) -> None:
    written(folder, "surrogate", SURROGATE.replace("carried.through_ratio(carried.amount)", '"A times a gate"'))
    (check,) = [check for check in check_objective(load_objective("mine")) if check.name == "explained"]
    assert check.wrong == ""
    assert "the coefficient is not compared: 'times' is not defined by a formula" in check.what


def test_of_two_own_kinds_the_one_to_blame_is_named(folder: Path) -> None:
    """The other one's absence changes nothing."""
    written(folder, "surrogate", SURROGATE.replace("Gain(terms.ratio", "Gain(terms.ratio * len(terms.ratio)"))
    text = (folder / "kinds" / "own.py").read_text()
    other = "@dataclass(frozen=True)\nclass Other:\n    needs = Needs()\n" + WEIGHT
    text = text.replace("KINDS = {", other + '\n\nKINDS = {"weight": {"other": Other}, ')
    (folder / "kinds" / "own.py").write_text(text)
    with (folder / "objective" / "mine.yaml").open("a") as file:
        file.write("weight: other\n")
    found = {check.name: check.wrong for check in failed()}
    assert "surrogate Mine (" in found["micro-batches"]
    assert "Other" not in found["micro-batches"]


def test_the_command_prints_the_place(folder: Path) -> None:
    fault = FAULTS["never applied"]
    written(folder, fault.axis, WEIGHT.replace(fault.old, fault.new))
    found = tepo("check-objective", "mine", code=1)
    assert "weight Mine.token_weights (" in " ".join(found.stdout.split())
