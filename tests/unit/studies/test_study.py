from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.studies.plan import make_plan
from tepo.studies.plan_studies import plan_all
from tepo.studies.study import load_study, parse_study
from tests.support.runs import write

SCALES = "scales:\n  laptop: {models: [laptop], seeds: [0]}\n"
ROW = "title: x\nrows:\n  - {label: a, objective: tepo%s}\n" + SCALES
SCALE = "title: x\nrows:\n  - {label: a, objective: tepo}\nscales:\n  laptop: %s\n"


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        (f"title: x\n{SCALES}", "either `rows:` or `panels:`", 1),
        (ROW % ", overrides: [train.stepz=1]", "unknown configuration key 'train.stepz'", 3),
        (ROW % ", overrides: [seed=3]", "seed cannot be an override", 3),
        (ROW % ", by_model: {lapto: [train.steps=1]}", "unknown model 'lapto'", 3),
        (SCALE % "{models: [], seeds: [0]}", "models is a list", 5),
        (SCALE % "{models: [laptop], seeds: [0, 0]}", "listed twice", 5),
        ("title: x\nrows:\n  - {label: a, objective: tepo}\nscales:\n", "at least one scale", 4),
        (f"title: x\npanels: [panel_a, panel-b, panel_a]\n{SCALES}", "panel_a is listed twice", 2),
        (ROW % "" + "figures:\n  - {name: f, rows: [b]}\n", "unknown row 'b'", 7),
    ],
)
def test_a_mistake_names_file_line_and_key(text: str, what: str, line: int, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match="mine") as caught:
        parse_study(tmp_path / "mine.yaml")
    assert what in caught.value.what
    assert f"mine.yaml:{line}" in caught.value.where


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        parse_study(tmp_path / "mine.yaml")


def test_a_wrong_value_names_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "experiments/mine.yaml", ROW % ", overrides: [train.steps=abc]")
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    with pytest.raises(UserError) as caught:
        plan_all(["mine"], "laptop", store=tmp_path / "runs")
    assert "abc" in caught.value.what
    assert "mine, row 'a'" in caught.value.where


@pytest.mark.parametrize("override", ["seed=3", "store=/x", "objective=gspo", "scale=paper"])
def test_what_a_study_sets_itself_is_no_override(override: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be an override"):
        make_plan(load_study("panel-e"), "laptop", store=tmp_path, overrides=[override])


@pytest.mark.parametrize("seeds", [[0, 0], [-1], []])
def test_seeds_are_different_and_not_negative(seeds: list[int], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        make_plan(load_study("panel-e"), "laptop", store=tmp_path, seeds=seeds)
