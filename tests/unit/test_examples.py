import json
import re
import runpy
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tepo
from tepo.analysis.tables import study_table
from tepo.evaluation.statistics.region import Region
from tepo.policy.model.load_policy import load_policy
from tepo.reporting.tables.cells import format_interval, format_value
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import read_facts
from tests.support.commands import python
from tests.unit.result_pages import DOCS, pages


@pytest.mark.disaster  # reads all records
def test_the_board_and_the_gains_are_what_the_records_say(tmp_path: Path) -> None:
    for name, text in pages(tmp_path).items():
        written, now = ((DOCS / name).read_text(encoding="utf-8"), text)
        if name.endswith(".svg"):  # fonts and versions move its bytes
            written, now = (picture.rpartition("<!-- chart ")[2] for picture in (written, now))
        assert written == now, f"{name}: python -m tests.unit.result_pages"


ROOT = Path(tepo.__file__).parents[1]


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples/records_arithmetic.py"))


def test_its_accuracies_are_those_of_the_table(script: dict[str, Any], tmp_path: Path) -> None:
    """On seeds that share their problems its formula is that of `tepo table`."""
    planned, facts = read_facts(plan_all(["language_model"], "small_lm", store=tmp_path), records=True)
    ((study, units),) = planned
    block = study_table(study, units, facts).blocks[0]
    (column,) = (column for column in block.columns if column.key == "delta")
    scores = script["read"]("scores", "language_model")
    for row in block.rows:
        if row.label not in (study.baseline, "before RL"):
            cell = block.column("delta")[row.key]
            value = f"{format_value(cell, column, 1)} {format_interval(cell, column, 1)}"
            assert script["accuracy"](scores, row.label, study.baseline, "") == value


def test_a_sign_test_by_hand(script: dict[str, Any]) -> None:
    """Of eight seeds all, then seven, lie above 2; between takes both ends, and outside changes the two."""
    for seeds, p in (([3.0] * 8, 1 / 256), ([3.0] * 7 + [1.0], 9 / 256)):
        assert script["sign_p"](seeds, Region(low=2))[0] == pytest.approx(p)
        assert script["sign_p"](seeds, Region(high=2))[1] == pytest.approx(p)
    assert script["sign_p"]([0.0] * 8, Region(-1, 1)) == pytest.approx((1 / 256, 1))
    assert script["sign_p"]([0.0] * 8, Region(-1, 1, outside=True)) == pytest.approx((1, 1 / 256))
    assert script["sign_p"]([], Region(low=2)) == (1, 1)


@pytest.mark.slow  # it reads the records of all claims
def test_what_the_document_says_of_sign_tests(script: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    script["sign_tests"]()
    printed = [int(word) for word in capsys.readouterr().out.split() if word.isdigit()]
    claims, decided, _, corrected = printed
    text = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())
    assert f"judges the {claims} laptop claims by an exact sign test" in text
    assert f"decides {corrected} instead of {decided}, and leaves {claims - corrected} open" in text


# word problems --------------------------------------------------------------------------------------------------------
MAKE = ROOT / "examples/word_problems/make.py"
SUM = re.compile(r"(\d+) ([-+*]) (\d+) = (-?\d+)\. ")


def right(chain: str) -> bool:
    """Each of its sums holds, and the last one is its answer."""
    done = SUM.findall(chain)
    holds = all(int(c) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[o] for a, o, b, c in done)
    return holds and SUM.sub("", chain) == f"\\boxed{{{done[-1][3]}}}"


def test_chains_hold_but_where_they_slip() -> None:
    make, random = runpy.run_path(str(MAKE)), Random(0)
    for _, chain, answer in (make["draw"](random) for _ in range(300)):
        assert right(chain)
        assert chain.endswith(f"\\boxed{{{answer}}}")
    slips = [right(make["draw"](random, make["SLIP"])[1]) for _ in range(300)]
    assert 0.6 < sum(slips) / 300 < 0.85  # two results, each wrong with probability 0.15
    assert all(right(make["running_sums"](random)) for _ in range(300))


def test_a_folder_is_made_that_trains_and_measures(tmp_path: Path) -> None:
    python(MAKE, tmp_path, "--steps", "1")
    files = ("train.jsonl", "evals/word_problems.jsonl")
    train, held_out = ([json.loads(line)["problem"] for line in (tmp_path / name).open()] for name in files)
    assert (len(train), len(held_out), set(train) & set(held_out)) == (4000, 400, set())
    tokenizer = load_policy(str(tmp_path / "base")).tokenizer
    ids = tokenizer("12 - 10 = 2. \\boxed{2}")["input_ids"]
    assert tokenizer.decode(ids[0]).strip() == "12", "a number is a token"
