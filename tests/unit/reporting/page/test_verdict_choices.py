"""Verdicts under other choices: the declared one is the table's, and some seeds are as a study of these seeds alone."""

import html
import re
from itertools import product

import numpy as np
import pandas as pd
import pytest

from tepo.reporting.page import PageStudy, build_page
from tepo.reporting.page.head import PageHead
from tepo.reporting.page.verdict_choices import MARGINS, Strip, VerdictChoices, verdict_choices
from tepo.reporting.tables.build_table import RowSpec, TableSpec, build_table
from tepo.reporting.tables.render import as_text
from tepo.reporting.tables.table import Table
from tests.unit.reporting.samples import BENCHMARKS

ROWS = tuple(RowSpec(key, label) for key, label in zip("abcd", ("Base", "Equal", "Above", "Near"), strict=True))
CHANCES = {"a": 0.4, "b": 0.4, "c": 0.55, "d": 0.43}
DECLARED = (7, 3, 5, 0, 11, 2, 9, 4)


def frame(seeds: int) -> pd.DataFrame:
    """Rows of which the runs differ too, by seeds that are not declared in rising order."""
    rng = np.random.default_rng(3)
    ease = rng.uniform(-0.2, 0.2, (len(BENCHMARKS), 200))
    luck = rng.normal(0, 0.01, (len(CHANCES), len(DECLARED)))
    parts = []
    for (number, (row, chance)), (place, seed) in product(enumerate(CHANCES.items()), enumerate(DECLARED[:seeds])):
        drawn = np.random.default_rng([number, seed]).random((*ease.shape, 4))
        for benchmark, right in zip(BENCHMARKS, drawn < (chance + luck[number, place] + ease)[..., None], strict=True):
            problem, sample = (axis.ravel() for axis in np.indices(right.shape))
            part = pd.DataFrame(
                {"problem": problem, "sample": sample, "right": right.ravel().astype(int), "samples": 1}
            )
            parts.append(part.assign(row=row, seed=seed, benchmark=benchmark))
    return pd.concat(parts, ignore_index=True)


def table(samples: pd.DataFrame, family: int = 6) -> Table:
    spec = TableSpec(ROWS, BENCHMARKS, name="made", title="Made up", baseline="Base", family=family)
    return build_table(samples, spec)


def choices(table: Table) -> VerdictChoices:
    found = verdict_choices(table)
    assert found
    return found


def shown(table: Table) -> list[tuple[str, str]]:
    """Verdict and difference of each compared row, as `tepo table` prints them."""
    text = as_text(table, "markdown").replace("\\", "")
    lines = [line.removesuffix(" |").split(" | ") for line in text.splitlines() if line.startswith("|")]
    delta, verdict = (lines[0].index(title) for title in ("Δ Avg.", "Verdict"))
    return [(line[verdict], line[delta]) for line in lines[1:] if "[" in line[delta]]


def cell(one: VerdictChoices, strip: Strip, family: int, seeds: str, margin: str) -> tuple[str, str]:
    place = one.seeds.index(seeds)
    return strip.words[family][place][one.margins.index(margin)].text, strip.intervals[place]


@pytest.mark.parametrize("seeds", [3, 8])
def test_the_declared_choice_is_the_verdict_of_the_table(seeds: int) -> None:
    made = table(frame(seeds))
    page = build_page(PageHead("Made up"), [PageStudy(made, choices=choices(made))], [])
    said = re.findall(r'<tr class="said">.*?<span>(.*?)</span></th>', page)
    assert [tuple(html.unescape(one).split("; ")) for one in said] == shown(made)
    declared = re.findall(r'<td class="(\w+) declared">', page)
    words = {"better": "better", "worse": "worse", "not decided": "noise"}
    assert declared == [words[word.partition(" (")[0]] for word, _ in shown(made)]
    assert {"better", "noise"} <= set(declared) or seeds < 8
    assert "remain possible. To compare a margin with: the paper&#39;s own gains over GRPO/DAPO (Table 1" in page


def test_some_seeds_are_as_a_study_of_these_seeds_alone() -> None:
    every, one = frame(8), choices(table(frame(8)))
    assert one.seeds == ("first 3", "first 5", "all 8", "one left out")
    assert one.order == DECLARED
    for name, count in (("first 3", 3), ("first 5", 5), ("all 8", 8)):
        alone = table(every[every["seed"].isin(DECLARED[:count])])
        assert [cell(one, strip, 1, name, "0") for strip in one.strips] == shown(alone)
        uncorrected = table(every[every["seed"].isin(DECLARED[:count])], family=1)
        p = [compared.measured.p for compared in uncorrected.comparisons if compared.measured]
        words = [strip.words[0][one.seeds.index(name)][0] for strip in one.strips]
        assert [word.word != "not decided" for word in words] == [value < 0.05 for value in p]
        other = choices(alone)  # at every margin and in both families
        for mine, its in zip(one.strips, other.strips, strict=True):
            place, its_place = one.seeds.index(name), other.seeds.index(f"all {count}")
            assert [own[place] for own in mine.words] == [own[its_place] for own in its.words]


def test_leaving_out_one_seed_gives_the_range_of_the_studies_that_lack_one() -> None:
    every, one = frame(8), choices(table(frame(8)))
    lacking = [shown(table(every[every["seed"] != seed])) for seed in DECLARED]
    for number, strip in enumerate(one.strips):
        text, interval = cell(one, strip, 1, "one left out", "0")
        words = [study[number][0].partition(" (")[0] for study in lacking]
        assert all(f"{word} in {words.count(word)}" in text for word in set(words)) or (
            set(words) == {text.partition(",")[0]}
        )
        means = [float(study[number][1].split(" ")[0].replace("−", "-")) for study in lacking]
        assert [float(end.replace("−", "-")) for end in interval.split(" to ")] == [min(means), max(means)]


def test_a_margin_says_equivalent_only_of_what_is_surely_smaller() -> None:
    one = choices(table(frame(8), family=3))
    by_label = {strip.label: strip for strip in one.strips}
    for margin, size in MARGINS.items():
        for label, strip in by_label.items():
            text, interval = cell(one, strip, 0, "all 8", margin)
            low, high = (float(end.replace("−", "-")) for end in re.findall(r"−?\d+\.\d", interval)[1:])
            within = size > 0 and -size < low and high < size
            assert text.startswith("equivalent") <= within, (label, margin)
    assert cell(one, by_label["Above"], 1, "all 8", "4")[0].startswith("better")
    assert cell(one, by_label["Equal"], 0, "all 8", "4")[0].startswith("equivalent")


def test_a_larger_family_never_decides_more() -> None:
    alone, declared = 0, 1
    for strip in choices(table(frame(8), family=40)).strips:
        for smaller, larger in zip(strip.words[alone], strip.words[declared], strict=True):
            for one, other in zip(smaller, larger, strict=True):
                assert other.word in (one.word, "not decided", "it depends on the seed left out")


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_have_no_strip_and_a_reason(seeds: int) -> None:
    made = table(frame(seeds))
    assert choices(made).strips == ()
    page = build_page(PageHead("Made up"), [PageStudy(made, choices=choices(made))], [])
    assert "fewer than three seeds give no verdict" in page
    assert 'class="strips"' not in page


def test_rows_that_are_the_baseline_count_and_have_no_strip() -> None:
    rows = (*ROWS[:3], RowSpec("d", "Near", same_as="Base"))
    spec = TableSpec(rows, BENCHMARKS, name="made", title="Made up", baseline="Base")
    one = choices(build_table(frame(3), spec))
    assert [(strip.label, strip.family) for strip in one.strips] == [("Equal", 3), ("Above", 3)]


def test_a_table_without_a_baseline_has_no_choices() -> None:
    assert verdict_choices(build_table(frame(3), TableSpec(ROWS, BENCHMARKS, name="made", title="Made up"))) is None
