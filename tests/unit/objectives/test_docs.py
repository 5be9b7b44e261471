import contextlib
import io
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tepo.common import paths
from tepo.common.schema.document import load
from tepo.objectives import Needs, Objective, load_objective, names
from tepo.objectives.batch import PER_TOKEN
from tepo.objectives.testing.case import TabularCase, make_case

DOCS = Path(__file__).parents[3] / "docs"
PAPER = (DOCS / "paper.md").read_text()
PAGE = (DOCS / "trainers-use.md").read_text().partition("## Your own training loop\n")[2]


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def padded(case: TabularCase, objective: Objective) -> dict[str, Any]:
    """[B, T] tensors with rubbish beside the responses, as a trainer holds them: those that the row needs."""
    mask = torch.arange(int(case.lengths.max()) + 2) < case.lengths[:, None]
    batch, rubbish = case.batch(objective), torch.full(mask.shape, torch.nan, dtype=torch.float64)
    needed = ("logprobs", "old_logprobs", *(name for name in objective.needs.given if name in PER_TOKEN))
    return {
        "padded": {name: rubbish.masked_scatter(mask, getattr(batch, name)) for name in needed},
        "mask": mask,
        "rewards": case.rewards,
        "group_ids": case.group_ids,
        "max_new_tokens": case.limit,
        "values": case.groups().values,
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
    batch = replace(batch, logprobs=leaf, entropies=batch.entropies.detach(), full_kl=None)
    (expected,) = torch.autograd.grad(objective.loss(batch, objective.prepare(batch)).loss, leaf)
    scope["accumulate"](batch, [[0, 3, 1], [2], [8, 7, 6, 5, 4]])
    torch.testing.assert_close(leaf.grad, expected)


def test_theory_snippet_prints_what_the_page_shows():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(snippets(PAPER)[0], {})
    assert out.getvalue() == re.findall(r"```text\n(.*?)```", PAPER, re.DOTALL)[0]


READING = re.compile(r"`(\w+)(?:: | = )([^`]+)`")


def readings() -> list[tuple[str, dict[str, str]]]:
    """Row and setting of every reading of the page: in the last cell of a line of its tables, of `tepo` if it does not
    say of which."""
    found = []
    for line in PAPER.splitlines():
        cell = line.rpartition(" | ")[2] if line.startswith("| ") else ""
        row = re.search(r"of `(\w+)`", cell)
        found += [(row[1] if row else "tepo", {name: text}) for name, text in READING.findall(cell)]
    return found


@pytest.mark.parametrize(("name", "change"), readings())
def test_readings_are_lines_and_constants(name, change):
    assert load_objective(name, change).digest != load_objective(name).digest or change == {"kl": "k3(d)"}


def test_readings_that_are_trained_are_those_of_the_page():
    listed = {f"objective.{key}={text}" for _, change in readings() for key, text in change.items()}
    study = load(paths.find("experiments", "readings")).data["rows"]
    lines = [one for row in study for one in row.get("overrides", []) if re.match(r"objective\.\w+=.*[a-z]{2}", one)]
    assert len(lines) >= 7
    assert set(lines) <= listed
