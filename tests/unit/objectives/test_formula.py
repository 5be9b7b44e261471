"""The language: every row against its literal formula, whatever the split, order or number of ranks; mistakes that
people make; what a row inherits."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.objectives import load_objective
from tepo.objectives.formula.formula import Formula
from tepo.objectives.formula.row import differences, load_row, names
from tepo.objectives.testing.case import TabularCase, make_case, shuffled
from tepo.objectives.testing.checks import distance, partitions
from tepo.objectives.testing.simulated_ranks import SimulatedRank, on_ranks
from tests.unit.objectives.literal import View
from tests.unit.objectives.test_golden import ROWS as LITERALS

A = "(R - mean_g(R)) / (std_g(R) + 1e-6)"


def formula(J: str, constants: dict[str, float] | None = None, average: str = "tokens", **lines: str) -> Formula:
    return Formula("mine", {"A": A, **lines, "J": J}, constants or {}, average)


def gradient(made: Formula, case: TabularCase, parts: list[list[int]] | None = None, salt: int = 0) -> Tensor:
    """By the logits [N, V], summed over micro-batches."""
    batch = case.batch(made)
    plan = made.prepare(batch, salt=salt)
    every = [list(range(len(case.lengths)))] if parts is None else parts
    losses = [made.loss(batch.select(part), plan.select(part)).loss for part in every]
    return sum(torch.autograd.grad(loss, case.logits, retain_graph=True)[0] for loss in losses)


def test_the_rows_are_those_with_a_literal():
    assert names() == sorted(LITERALS)


@pytest.mark.parametrize("name", names())
def test_value_and_gradient_are_the_literal_ones(name: str):
    made = load_row(name).formula
    for seed in range(5):
        case = make_case(seed)
        batch = case.batch(made)
        loss = made.loss(batch, made.prepare(batch)).loss
        literal = -LITERALS[name](View(case))
        torch.testing.assert_close(loss, literal, rtol=1e-10, atol=1e-12)
        ours, theirs = (torch.autograd.grad(value, case.logits)[0] for value in (loss, literal))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", names())
def test_no_split_no_order_and_no_rank_changes_the_gradient(name: str):
    made, case = load_row(name).formula, make_case(21, repeat=4)
    expected = gradient(made, case, salt=3)
    for parts in partitions(len(case.lengths)):
        assert distance(gradient(made, case, parts, salt=3), expected) <= 1e-12, len(parts)
    order = torch.randperm(len(case.lengths), generator=torch.Generator().manual_seed(0))
    other, moved = shuffled(case, order)
    assert distance(gradient(made, other, salt=3), expected[moved]) <= 1e-12, "another order"

    def of_a_rank(comm: SimulatedRank) -> tuple[Tensor, Tensor, Tensor]:
        places = case.group_ids.unique(return_inverse=True)[1]  # groups are whole on one rank
        own, there = shuffled(case, torch.nonzero((places % 3 == 0) == (comm.rank == 0))[:, 0])
        advantages = made.advantages(own.groups(), comm)
        batch = own.batch(made, advantages)
        loss = made.loss(batch, made.prepare(batch, comm, salt=3)).loss
        return torch.autograd.grad(loss, own.logits)[0], advantages, there

    advantages = made.advantages(case.groups())
    for part, found, there in on_ranks(of_a_rank):
        assert distance(part, expected[there]) <= 1e-12, "two ranks"
        assert distance(found, advantages[there]) <= 1e-12, "advantages of two ranks"


@pytest.mark.parametrize("name", names())
def test_needs_follow_from_the_names(name: str):
    assert load_row(name).formula.needs == load_objective(name).needs


@pytest.mark.parametrize("name", ["tepo", "gspo", "steer", "clip_cov", "gtpo", "vespo", "dppo_kl", "kl_cov", "tis"])
def test_float32_is_near_float64(name: str):
    made = load_row(name).formula
    one, other = (gradient(made, make_case(4, dtype=dtype)) for dtype in (torch.float32, torch.float64))
    assert one.dtype == torch.float32
    assert distance(one.double(), other) <= 2e-6


@pytest.mark.parametrize("name", names())
def test_far_policies_give_finite_gradients(name: str):
    made, case = load_row(name).formula, make_case(3)
    pushed = (case.logits.detach() + 60 * torch.sign(case.logits.detach())).requires_grad_()
    case = replace(case, logits=pushed)
    assert gradient(made, case).isfinite().all()


@pytest.mark.parametrize("name", names())
def test_a_nan_reaches_the_loss(name: str):
    made, case = load_row(name).formula, make_case(2)
    batch, read = case.batch(made), [one for one in made.needs.given if one in ("entropies", "sampler_logprobs")]
    plan = made.prepare(batch)
    for field in ("logprobs", *read):
        spoilt = getattr(batch, field).detach().clone()
        spoilt[5] = torch.nan
        assert made.loss(replace(batch, **{field: spoilt.requires_grad_()}), plan).loss.isnan(), field
    groups = case.groups()
    rewards = groups.rewards.clone()
    rewards[0] = torch.nan
    assert made.advantages(replace(groups, rewards=rewards))[:4].isnan().all()


def test_groups_that_tell_nothing_get_exactly_0():
    case = make_case(0)
    for name in names():
        alike = replace(case.groups(), rewards=torch.full_like(case.rewards, 0.3))
        made = load_row(name).formula
        if name not in ("gtpo", "gtpo_v2", "gtpo_clipped", "grpo_s", "grpo_s_v2", "gdpo"):  # these tell them apart
            assert not made.advantages(alike).any(), name
        alone = replace(case.groups(), group_ids=torch.arange(len(case.lengths)))
        if name not in ("gtpo", "gtpo_v2", "gtpo_clipped", "gdpo"):
            assert not made.advantages(alone).any(), name


# texts ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("J", "said", "under"),
    [
        ("A*logpp", "unknown name 'logpp'", "logpp"),
        ("A*Logp", "did you mean 'logp'?", "Logp"),
        ("meen_i(d)*A", "did you mean 'mean_i'?", "meen_i"),
        ("(A > 0) and (d > 0)", "(…) & (…)", "(A > 0) and (d > 0)"),
        ("A*(A > 0 & d > 1)", "brackets around each", "A > 0 & d > 1"),
        ("A*(A = 0)", "== compares", ""),
        ("2d*A", "put a * between", ""),
        ("(A)(d)", "no function", "(A)(d)"),
        ("mean_i(T)*A*d", "tokens(…)", "T"),
        ("mean_b(T)*A*d", "mean_b(responses(…))", "T"),
        ("A*d/0", "a division by 0", "0"),
        ("A*d**9**9**9", "an exponent", ""),
        ("A*d**99", "an exponent beyond 8", "99"),
        ("A*d + " + "(" * 60 + "d" + ")" * 60, "nested more than 40 deep", "("),
        ("А*logp", "cyrillic capital letter a", "А"),
        ("A*logp if A else 0", "where(", "A*logp if A else 0"),
        ("A.sum()*logp", "no dots", "A.sum()"),
        ("A*logp['x']", "no dots", "logp['x']"),
        ("A*'logp'", "neither a number nor a name", "'logp'"),
        ("exp(x=d)*A", "by position", "exp(x=d)"),
        ("clip(d)*A", "clip takes 3 arguments", "clip(d)"),
        ("0 < d < 1", "two comparisons", "0 < d < 1"),
        ("not d", "~(…)", "not d"),
        ("A*(A & d)", "no condition", "A"),
        ("where(A, d, 0)", "wants a condition", "A"),
        ("mean_g(d)*A", "mean_g is of the rollout, and d is of the loss", "d"),
        ("top_b(H, d)*A*d", "wants a constant", "d"),
        ("A*log(-1)*d", "no number", "log(-1)"),
        ("A*H_old", "J has no gradient", "A*H_old"),
        ("sg(d)*A", "J has no gradient", "sg(d)*A"),
        ("logp", "reads nothing of the rollout", "logp"),
        ("A*R*logp", "", ""),
        ("A*logp + sg(R*mean_g(H_old))*d", "several values of the rollout", ""),
        ("A*logp + kl_old + kl_initial", "kl_old and kl_initial", ""),
        ("lambda: 0", "not of this language", "lambda: 0"),
        ("A*logp\u200b", "zero width space", "\u200b"),
        ("", "write an expression", ""),
        ("comb(d, 2.5)*A", "whole number", "2.5"),
        ("A*d*1e999", "a number out of range", "1e999"),
        ("A*logp + mine", "reads", ""),
    ],
)
def test_mistakes_have_a_caret_under_the_word(J: str, said: str, under: str):
    lines = {"mine": "J + 1"} if "mine" in J else {}
    if not said:
        formula(J)  # a product of the rollout's values is one value of it
        return
    with pytest.raises(UserError) as caught:
        formula(J, **lines)
    text = str(caught.value)
    assert said in text, text
    if under:
        what, carets = caught.value.what.splitlines()[-2:]
        begin = carets.index("^")
        assert what[begin : carets.rindex("^") + 1] == under, text


def test_names_are_defined_once_and_read():
    with pytest.raises(UserError, match="is given and cannot be defined"):
        formula("A*logp", d="logp")
    with pytest.raises(UserError, match="a constant too"):
        formula("A*logp*beta", {"beta": 1.0}, beta="2")
    with pytest.raises(UserError, match="has no line J"):
        Formula("mine", {"A": A}, {})
    with pytest.raises(UserError, match="circle: x reads y reads x"):
        formula("A*logp + x", x="y", y="x + d")
    with pytest.raises(UserError, match="average reads"):
        formula("A*logp", average="1/(B*mean_i(d))")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("min(w*A, clip(w, 1 - 0.2, 1.28)*A)", "min(A*clip(w, 0.8, 1 + 0.28), A * w)", True),
        ("w*A + 0*d", "0.0*d + (w)*A", True),
        ("w*A - d", "d - w*A", False),
        ("w*A", "exp(d)*A", True),
        ("clip(w, 0.8, 1.2)*A", "clip(w, 0.8, 1.3)*A", False),
    ],
)
def test_the_digest_is_of_the_meaning(one: str, other: str, same: bool):
    first, second = (formula(J, w="exp(d)").digest for J in (one, other))
    assert (first == second) == same


def test_doubling_lines_stay_small():
    lines = {"x0": "d", **{f"x{n}": f"x{n - 1} + x{n - 1}" for n in range(1, 60)}}
    made = formula("A*x59/2**8", **lines)
    assert len(list(made._j.below())) < 200


def test_a_condition_times_a_number_keeps_float64():
    case = make_case(1)
    one, other = (gradient(formula(J), case) for J in ("(A > 0)*0.001*k3(d)", "where(A > 0, 0.001*k3(d), 0)"))
    assert distance(one, other) <= 1e-15


def test_what_a_condition_leaves_out_may_be_infinite():
    case = make_case(1)
    assert gradient(formula("A*d - (A > 5)*log(sg(0*d))"), case).isfinite().all()


@pytest.mark.parametrize(
    ("average", "same"), [("1/N", "tokens"), ("1/(B*T)", "responses"), ("1/B", "sums"), ("1/(B*L)", "budget")]
)
def test_an_average_is_an_expression(average: str, same: str):
    case = make_case(1)
    one, other = (gradient(formula("A*d", average=name), case) for name in (average, same))
    assert torch.equal(one, other)


def test_a_filter_takes_cut_responses_out_of_sums_and_denominators():
    case = make_case(21, repeat=4)
    for name in ("grpo_dapo", "kl_cov", "steer", "top_entropy_v2", "tis_normalized"):
        made = replace(load_row(name), keep="finished").formula
        batch = case.batch(made)
        kept = torch.nonzero(case.finished)[:, 0]
        without = batch.select(kept)
        alone = load_row(name).formula
        loss = alone.loss(without, alone.prepare(without, salt=3)).loss
        expected = torch.autograd.grad(loss, case.logits, retain_graph=True)[0]
        assert distance(gradient(made, case, salt=3), expected) <= 1e-12, name


# files ----------------------------------------------------------------------------------------------------------------
def write(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_row_shows_what_it_changes():
    assert differences(load_row("tepo_kl_all"), load_row("tepo")) == ["M: 1"]
    assert differences(load_row("gspo"), load_row("grpo_dapo")) == [
        "w: exp(mean_i(d))",
        "low = 0.0003",
        "high = 0.0004",
        "average: responses",
    ]
    assert not differences(load_row("tepo"), load_row("tepo"))


def test_every_constant_has_a_source_and_every_row_says_what_it_is():
    for name in names():
        row = load_row(name)
        assert row.about != name
        assert all(one.source for one in row.constants.values()), name


def test_a_row_of_ones_own_is_like_another(tmp_path: Path):
    path = write(tmp_path, "like: tepo\nformula:\n  w: exp(d)\n")
    made = load_row(path)
    case = make_case(0)
    literal = load_row("tepo", {"w": "exp(d)"}).formula
    assert torch.equal(gradient(made.formula, case), gradient(literal, case))
    deeper = write(tmp_path, "like: mine\nconstants: {beta: 0.5}\n", "deeper.yaml")
    assert load_row(deeper).constants["beta"].value == 0.5
    assert load_row(deeper).lines["w"] == "exp(d)"
    falls_away = write(tmp_path, "like: tepo\nformula:\n  J: w*A\n", "plain.yaml")
    assert load_row(falls_away).formula.needs == load_row("grpo_dapo").formula.needs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("formula: {J: min(w*A, b)}", "YAML splits at the comma"),
        ("formula:\n  w: *x\n", "not valid YAML"),
        ("like: tepo\nconstants: {beta: abc}\n", "'abc' is no number"),
        ("like: tepo\nconstants: {betta: 1}\n", "nothing reads betta"),
        ("like: tepo\nformula:\n  Q: d\n", "nothing reads Q"),
        ("like: teppo\n", "did you mean 'tepo'?"),
        ("like: mine\n", "circle"),
        ("like: tepo\nconstant: {beta: 1}\n", "unknown key of an objective"),
        ("like: tepo\nconstants: {beta: {value: 1, sorce: x}}\n", "unknown key of a constant"),
        ("like: tepo\nkeep: all\n", "keep: 'all' is not known"),
        ("formula: J\n", "a mapping of names"),
    ],
)
def test_mistakes_in_a_file_name_it(text: str, said: str, tmp_path: Path):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        _ = load_row(path).formula
    assert said in str(caught.value), caught.value
    assert "mine.yaml" in str(caught.value)


def test_3e_4_is_a_number_also_where_yaml_takes_it_for_a_text(tmp_path: Path):
    path = write(tmp_path, "like: tepo\nconstants: {beta: 3e-4}\n")
    assert load_row(path).constants["beta"].value == 3e-4


def test_changes_set_constants_and_lines(tmp_path: Path):
    row = load_row("tepo", {"beta": "0.1", "w": "exp(d)", "average": "responses"})
    assert row.constants["beta"].value == 0.1
    assert (row.lines["w"], row.average) == ("exp(d)", "responses")
    with pytest.raises(UserError, match="did you mean 'beta'"):
        load_row("tepo", {"betta": 0.1})
    assert "kl" not in load_row("tepo", {"J": "w*A - beta*M*kl_old"}).formula.read  # it falls away
    assert load_row("tepo", {"J": "w*A"}).formula.digest == load_row("tepo_no_kl", {"J": "w*A"}).formula.digest
    path = write(tmp_path, "like: tepo\nconstants: {betta: 1}\n")
    with pytest.raises(UserError, match="nothing reads betta"):
        load_row(path, {"beta": 1})
    with pytest.raises(UserError, match="nothing reads kappa"):
        _ = load_row("tepo", {"kappa": "d"}).formula
