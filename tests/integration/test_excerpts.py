"""From a run that is really trained and falls, through records, to the tokens on the page in a browser."""

import shlex
from pathlib import Path

import pytest

from tepo.store.run_folder import RunFolder
from tests.integration.commands import tepo
from tests.unit.reporting.chromium import chromium
from tests.unit.training.small import SMALL, few_problems, write

pytestmark = [pytest.mark.slow, pytest.mark.disaster, pytest.mark.chromium]

STUDY = f"""
title: rates
rows:
  - {{label: GPG, objective: gpg}}
scales:
  laptop:
    models: [laptop]
    seeds: [0]
    vary: {{train.learning_rate: [1e-5, 3e-3]}}
    overrides: {[*SMALL, "train.steps=8", "data.benchmarks=[add3,max4]"]}
"""


def test_what_a_run_answered_before_and_after_it_fell_is_on_the_page(tmp_path: Path) -> None:
    few_problems(tmp_path)
    write(tmp_path / "experiments/rates.yaml", STUDY)

    def called(*words: str) -> str:
        done = tepo(*words, cwd=tmp_path, TEPO_PATH=str(tmp_path))
        return done.stdout + done.stderr

    called("ablate", "rates")
    called("records", "write", "rates")
    before = called("table", "rates", "--records", "--store", "nothing", "--format", "csv")
    asked = called("records", "write", "rates", "--excerpts", "--store", "again")
    assert "0 excerpts, 1 lacking" in asked
    command = shlex.split(asked.partition(": tepo ")[2].partition("\n")[0])
    called(*command)  # as it is printed
    assert "1 excerpt, 0 lacking" in called("records", "write", "rates", "--excerpts", "--store", "again")
    assert called("table", "rates", "--records", "--store", "nothing", "--format", "csv") == before
    called("report", "rates", "--records", "--store", "nothing", "--out", "page.html")

    (folder,) = (tmp_path / "again").glob("*/tokens")
    excerpt = RunFolder(folder.parent).excerpt()
    assert excerpt
    passages = (excerpt.before, excerpt.after)
    with chromium() as page:
        page.open(tmp_path / "page.html")
        page.wait("return document.querySelectorAll('button.cell').length === 2")
        page.run("document.querySelector('button.cell:has(.quoted)').click()")
        page.wait("return document.querySelectorAll('.passage').length === 2")
        shown = page.run("return [...document.querySelectorAll('.passage .said')].map((one) => one.textContent)")
        assert shown == ["".join(one.tokens) for passage in passages for one in passage.dump.responses]
        assert "it equals the recorded one in all figures on record" in page.one(".excerpt").text
        assert page.console() == []
