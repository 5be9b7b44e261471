import re
from pathlib import Path

import pytest

from tepo.store.run_folder import RunFolder
from tests.support.commands import tepo
from tests.support.runs import SMALL, few_problems, write
from tests.unit.reporting.pages import unpacked

pytestmark = [pytest.mark.slow, pytest.mark.disaster]

STUDY = f"""
title: rates
rows:
  - {{label: GPG, objective: gpg}}
scales:
  laptop:
    models: [laptop]
    seeds: [0]
    vary: {{train.learning_rate: [1e-5, 3e-3]}}
    overrides: {[*SMALL, "train.steps=8", "train.token_dump_every=1", "data.benchmarks=[add3,max4]"]}
"""


def test_what_a_run_answered_before_and_after_it_fell_is_on_the_page(tmp_path: Path) -> None:
    few_problems(tmp_path)
    write(tmp_path / "experiments/rates.yaml", STUDY)
    for words in ("ablate rates", "records write rates", "report rates --records --store nothing --out page.html"):
        tepo(*words.split(), cwd=tmp_path, TEPO_PATH=str(tmp_path))
    excerpts = (RunFolder(path.parent).excerpt() for path in (tmp_path / "runs").glob("*/tokens"))
    (excerpt,) = filter(None, excerpts)
    passages = (excerpt.before, excerpt.after)
    (held,) = re.findall(r'id="token-data">([^<]+)<', (tmp_path / "page.html").read_text())
    shown = [(dump["step"], one["tokens"]) for dump in unpacked(held)["dumps"] for one in dump["responses"]]
    assert shown == [(passage.dump.step, one.tokens) for passage in passages for one in passage.dump.responses]
