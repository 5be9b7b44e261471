"""The documentation's code runs as printed, and its tables name what exists."""

import contextlib
import io
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tepo.objectives.kind_options import options_of, to_text
from tepo.objectives.loading import AXES, text
from tepo.objectives.members import members

from tepo.objectives import Needs, Objective, load_objective, names
from tepo.objectives.inputs import PER_TOKEN
from tepo.objectives.testing.case import TabularCase, make_case
from tests.invariants.rows import changed
from tests.unit.objectives.tables import with_tables

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "objectives.md").read_text()


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def padded(case: TabularCase, objective: Objective) -> dict[str, Any]:
    """[B, T] tensors with rubbish beside the responses, as a trainer holds them: those that the row needs."""
    mask = torch.arange(int(case.lengths.max()) + 2) < case.lengths[:, None]

    def pad(values: torch.Tensor) -> torch.Tensor:
        return torch.full(mask.shape, 7.0, dtype=values.dtype).masked_scatter(mask, values)

    batch = case.batch(objective)
    names = ("logprobs", "old_logprobs", *(name for name in objective.needs.given if name in PER_TOKEN))
    return {
        "padded": {name: pad(getattr(batch, name)) for name in names},
        "mask": mask,
        "rewards": case.rewards,
        "group_ids": case.group_ids,
        "max_new_tokens": case.limit,
    }


@pytest.mark.parametrize("name", names())
def test_own_trainer_snippet(name):
    """The printed function, for every row."""
    code = snippets(PAGE)[0]
    assert len([line for line in code.splitlines() if line.strip()]) < 15
    scope: dict = {}
    exec(code.replace('load_objective("tepo")', f'load_objective("{name}")'), scope)
    case, objective = make_case(0), load_objective(name)
    result = scope["loss_of"](**padded(case, objective))
    batch = case.batch(objective)
    expected = objective.loss(batch, objective.prepare(batch))
    if name not in ("clip_cov", "kl_cov"):  # their draws depend on the uid, which the snippet numbers from 0
        torch.testing.assert_close(result.loss, expected.loss)
    assert torch.autograd.grad(result.loss, case.logits)[0].norm() > 0
    assert "actor/pg_loss" in result.metrics.means()


def test_the_page_names_all_that_a_row_may_need():
    rows = set(re.findall(r"^\| `(\w+)` \| .*\|$", PAGE, re.MULTILINE))
    assert {part.name for part in fields(Needs)} - {"entropy_gradient", "full_kl_anchor"} <= rows


def test_accumulation_snippet():
    scope: dict = {}
    for code in snippets(PAGE)[:2]:
        exec(code, scope)
    case, objective = make_case(0), load_objective("tepo")
    batch = case.batch(objective)
    leaf = batch.logprobs.detach().requires_grad_()
    batch = type(batch)(**{**batch.__dict__, "logprobs": leaf, "entropies": batch.entropies.detach(), "full_kl": None})
    (expected,) = torch.autograd.grad(objective.loss(batch, objective.prepare(batch)).loss, leaf)
    scope["accumulate"](batch, [[0, 3, 1], [2], [8, 7, 6, 5, 4]])
    torch.testing.assert_close(leaf.grad, expected)


def test_theory_snippet_prints_what_the_page_shows():
    page = (DOCS / "paper.md").read_text()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(snippets(page)[0], {})
    assert out.getvalue() == re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]


def test_tables_name_every_row_axis_and_kind():
    assert with_tables(PAGE) == PAGE, "python -m tests.unit.objectives.tables"
    for name in names():
        assert f"| `{name}` | {text(name).splitlines()[0].lstrip('# ')} |" in PAGE
    for axis, (_, kinds, _) in AXES.items():
        line = next(line for line in PAGE.splitlines() if line.startswith(f"| `{axis}`"))
        assert f" | {', '.join(kinds)} | " in line, line


def test_the_options_of_the_page_are_those_that_the_command_prints():
    """Each option of each kind: its name, its default and its words."""
    for axis in AXES:
        section = PAGE.partition(f"### The kinds of `{axis}`\n")[2].partition("\n#")[0]
        shown = to_text(options_of(axis), width=10_000)
        for line in section.splitlines()[3:]:
            kind, option, taken, default, meaning, _ = (cell.strip() for cell in re.split(r" (?<!\\)\| ", line[2:]))
            said = f"{option[1:-1]} = {default[1:-1]}  ({taken})" if option else f"{AXES[axis][0]}: {kind[1:-1]}"
            assert said in shown, said
            assert meaning.replace("\\|", "|") in shown
        for member in members(axis):
            assert f"  {member}: " in shown or f"  def {member}(" in shown


def test_readings_are_options():
    """Every `axis.key=value` of the page of the papers is accepted by a row that has the axis."""
    special = {
        "alpha=4e-4": "entropy_advantage",
        "alpha=nonzero_rewards": "gpg",
        "counted": "gtpo",
        "statistics": "gtpo",
        "length_term": "gtpo_clipped",
        "mean_over=kept": "top_entropy",
        "of": "kimi_k2_5",
    }
    cells = re.findall(r"`(\w+)\.(\w+)=(\w[\w.-]*)`", (DOCS / "paper.md").read_text())
    cells = [cell for cell in cells if cell[0] in AXES]  # others are settings of a run
    assert len(cells) >= 14
    for axis, key, value in cells:
        load_objective(changed(special.get(f"{key}={value}", special.get(key, "tepo")), {axis: {key: value}}))
