"""The pages on formulas and on a training loop of one's own: code that runs, tables and readings that are the rows'."""

import contextlib
import io
import re
import shlex
from math import exp
from typing import Any

import pytest
import torch

from tepo.common import paths
from tepo.common.schema.document import load
from tepo.formula.row import load_row, names
from tepo.objectives import Objective, load_objective
from tepo.objectives.batch import PER_TOKEN
from tepo.objectives.testing.case import TabularCase, make_case
from tepo.reporting.charts.style import digest
from tests.unit.objectives.flat import by_hand, coefficients, loss_of, tensor
from tests.unit.objectives.formula_tables import DOCS, PICTURE, picture, tables, with_tables

PAPER, METHODS = (DOCS / "paper.md").read_text(), (DOCS / "methods.md").read_text()
PAGE = (DOCS / "trainers-use.md").read_text().partition("## Your own training loop\n")[2]


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def padded(case: TabularCase, objective: Objective) -> dict[str, Any]:
    """[B, T] tensors with rubbish beside the responses, as a trainer holds them: those that the row needs."""
    mask = torch.arange(int(case.lengths.max()) + 2) < case.lengths[:, None]
    batch, rubbish = case.batch(objective), torch.full(mask.shape, torch.nan, dtype=torch.float64)
    needed = ("logprobs", "old_logprobs", *(name for name in objective.needs.given if name in PER_TOKEN))
    given = {"rewards": case.rewards, "group_ids": case.group_ids, "max_new_tokens": case.limit}
    tensors = {name: rubbish.masked_scatter(mask, getattr(batch, name)) for name in needed}
    return {"padded": tensors, "mask": mask, "values": case.groups().values, **given}


@pytest.mark.parametrize("name", names())
def test_own_trainer_snippet(name):
    """The printed function, for every row."""
    scope: dict = {}
    exec(snippets(PAGE)[0].replace('load_objective("tepo")', f'load_objective("{name}")'), scope)
    case, objective = make_case(0), load_objective(name)
    result = scope["loss_of"](**padded(case, objective))
    if name not in ("clip_cov", "kl_cov"):  # their draws depend on the uid, which the snippet numbers from 0
        torch.testing.assert_close(result.loss, loss_of(objective, case.batch(objective)).loss)
    assert torch.autograd.grad(result.loss, case.logits)[0].norm() > 0


def test_theory_snippet_prints_what_the_page_shows():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(snippets(PAPER)[0], {})
    assert out.getvalue() == re.findall(r"```text\n(.*?)```", PAPER, re.DOTALL)[0]


def test_readings_are_lines_and_constants_and_those_that_are_trained_are_among_them():
    """Every reading of the page: in the last cell of a line of its tables, of `tepo` if it does not say of which."""
    readings = set()
    for line in PAPER.splitlines():
        cell = line.rpartition(" | ")[2] if line.startswith("| ") else ""
        row = re.search(r"of `(\w+)`", cell)
        for name, text in re.findall(r"`(\w+)(?:: | = )([^`]+)`", cell):
            like = row[1] if row else "tepo"
            assert text == "k3(d)" or load_objective(like, {name: text}).digest != load_objective(like).digest, text
            readings.add(f"objective.{name}={text}")
    study = load(paths.find("experiments", "readings")).data["rows"]
    lines = {one for row in study for one in row.get("overrides", []) if re.match(r"objective\.\w+=.*[a-z]{2}", one)}
    assert len(lines) >= 7
    assert lines <= readings


def test_the_pages_have_the_tables_and_the_picture_of_the_language():
    for file, made in tables().items():
        page = file.read_text()
        assert with_tables(page, made) == page, "python -m tests.unit.objectives.formula_tables"
    assert all(f"\n| `{name}` |" in METHODS for name in names())
    assert digest(picture()) in PICTURE.read_text(), "python -m tests.unit.objectives.formula_tables"


def changes(words: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in words)


def test_what_the_page_calls_otherwise_can_be_written_so():
    """Each line of the table is a row with settings, whose formula is sound and another one than the row's."""
    section = METHODS.partition("## Under another name\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| .+ \| `(.+?)`[^`|]*(?:`.+`)?[^|`]*\|$", section, re.MULTILINE)
    assert len(lines) > 20
    for line in lines:
        name, *words = shlex.split(line)
        row = load_row(name, changes(words))
        assert (row.formula.digest != load_row(name).formula.digest) == bool(words), line


def test_the_distillation_of_prime_rl_is_the_line_of_the_page():
    """`ref_kl_loss_fn`, by hand: what fell by more than 0.2 is dropped, and a squared log-ratio is added."""
    (line,) = re.findall(r"^\| prime-rl `opd` \| `distillation (.+?)` \|$", METHODS, re.MULTILINE)
    objective = load_objective("distillation", changes(shlex.split(line)))
    sampler, teacher = tensor(-1, -0.5, -2, -0.7), tensor(-0.5, -1, -1.5, -3)
    batch = by_hand([1.3, 0.9, 0.4, 1.1], [0.0] * 4, sampler_logprobs=sampler, teacher_logprobs=teacher)
    slopes, dropped = [], 0
    for now, then, taught in zip(batch.logprobs.tolist(), sampler.tolist(), teacher.tolist(), strict=True):
        fell = exp(now) - exp(then) < -0.2
        slopes.append((not fell) * exp(now - then) * (taught - now) - 2e-3 * (now - then))
        dropped += fell
    assert dropped == 1
    assert coefficients(objective, batch).tolist() == pytest.approx(slopes, abs=1e-12)
