from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.studies.plan import make_plan
from tepo.studies.plan_studies import plan_all
from tepo.studies.study import Study, parse_study
from tests.support.results import finish, table_from_store

ROWS = "title: x\nbaseline: a\nrows:\n  - {label: a, objective: tepo_no_kl%s}\n  - {label: b, objective: gspo}\n"
SCALES = "scales:\n  laptop: {models: [laptop], seeds: [0]%s}\n"
CLIP = """vary:
  train.learning_rate: [1e-4, 4e-4]
  clip:
    paper: [objective.low=0.2, objective.high=0.28]
    tight: [objective.low=0.02, objective.high=0.028]
"""
EPOCHS = "vary: {train.epochs: [1, 2]}\n"
X = "vary: {x: {1: [train.steps=1], '1, x=1': [train.steps=2]}}\n"


def study(folder: Path, text: str) -> Study:
    (folder / "mine.yaml").write_text(text)
    return parse_study(folder / "mine.yaml")


def test_axes_cross_each_other_and_the_rows(tmp_path: Path) -> None:
    units = make_plan(study(tmp_path, ROWS % "" + CLIP + SCALES % ""), "laptop", store=tmp_path)
    settings = [f"learning_rate={rate}, clip={clip}" for rate in ("1e-4", "4e-4") for clip in ("paper", "tight")]
    assert [unit.label for unit in units] == [f"{row}, {setting}" for setting in settings for row in "ab"]
    assert len({unit.id for unit in units}) == len(units)
    for unit in units:
        assert (
            str(unit.config.train.learning_rate)
            == {"1e-4": "0.0001", "4e-4": "0.0004"}[unit.row.setting.point["learning_rate"]]
        )
        bounds = (unit.config.objective["constants"]["low"], unit.config.objective["constants"]["high"])
        assert bounds == {"paper": (0.2, 0.28), "tight": (0.02, 0.028)}[unit.row.setting.point["clip"]]


def test_a_scale_has_axes_of_its_own(tmp_path: Path) -> None:
    """An axis under a scale replaces the study's of that name; the others stay."""
    text = ROWS % "" + "vary: {train.learning_rate: [1e-4], train.epochs: [1, 2]}\n"
    mine = study(
        tmp_path,
        text + SCALES % ", vary: {train.learning_rate: [2e-4, 3e-4]}" + "  paper: {models: [qwen2.5-7b], seeds: [2]}\n",
    )
    laptop, paper = ([row.name for row in mine.rows_at(scale)] for scale in ("laptop", "paper"))
    assert laptop[::2] == [f"a, learning_rate={rate}, epochs={n}" for rate in ("2e-4", "3e-4") for n in (1, 2)]
    assert paper[::2] == [f"a, learning_rate=1e-4, epochs={n}" for n in (1, 2)]


def test_the_base_follows_the_data_of_its_setting(tmp_path: Path) -> None:
    """A mix has its own base and benchmarks; a learning rate has not."""
    text = "title: x\nbaseline: a\nrows:\n  - {label: base, base: true}\n  - {label: a, objective: gspo}\n"
    mine = study(
        tmp_path, text + "vary: {data: [laptop, laptop_sparse], train.learning_rate: [1e-4, 2e-4]}\n" + SCALES % ""
    )
    units = make_plan(mine, "laptop", store=tmp_path)
    base = [unit.id for unit in units if unit.row.base]
    assert base[0] == base[1] != base[2] == base[3]


def test_values_of_yaml_become_overrides(tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-7 as text and 2.5e-7 as a number."""
    values = (
        "{data.exclude_contaminated: [on, off], train.learning_rate: [2.5e-7, 1e-7], train.checkpoint_every: [null, 4]}"
    )
    mine = study(tmp_path, ROWS % "" + f"vary: {values}\n" + SCALES % "")
    written = {word for row in mine.rows_at("laptop") for word in row.setting.overrides}
    assert written == {
        *("data.exclude_contaminated=true", "data.exclude_contaminated=false"),
        *("train.learning_rate=2.5e-7", "train.learning_rate=1e-7"),
        *("train.checkpoint_every=null", "train.checkpoint_every=4"),
    }


def test_two_axes_of_one_short_name_keep_their_sections(tmp_path: Path) -> None:
    mine = study(tmp_path, ROWS % "" + "vary: {engine.kind: [torch], sampler.kind: [torch]}\n" + SCALES % "")
    assert mine.rows_at("laptop")[0].name == "a, engine.kind=torch, sampler.kind=torch"


TEPO = "{table: papers/tepo/table1.csv, method: tepo, model: Qwen2.5-7B}"


@pytest.mark.parametrize(
    ("row", "text", "scale", "what", "line"),
    [
        ("", "vary: {train.learning_rat: [1e-4]}\n", "", "unknown configuration key 'train.learning_rat'", 6),
        ("", "vary: {train.learning_rate: []}\n", "", "names no values", 6),
        ("", "vary:\n  train.learning_rate:\n    - 1e-4\n    - 0.0001\n", "", "which are the same", 9),
        ("", "vary: {seed: [0, 1]}\n", "", "seed cannot be an override", 6),
        ("", "vary:\n  clip: {a: [train.stepz=1]}\n", "", "unknown configuration key 'train.stepz'", 7),
        ("", "vary:\n  train.steps: [1]\n  b: {x: [train.steps=2]}\n", "", "train.steps and b both set", 8),
        ("", "vary: {train.epochs: [1]}\nfigures:\n  - {name: f, rows: [a]}\n", "", "beside `figures:`", 7),
        ("", "realised_kl: true\n", "", "of the cells of a sweep", 6),
        *((row, EPOCHS, "", "'train.epochs=1' sets what `vary:` sets", 4) for row in (
            ", overrides: [train.epochs=1]", ", laptop: [train.epochs=1]", ", by_model: {laptop: [train.epochs=1]}")),
        ("", EPOCHS, ", overrides: [train.epochs=1]", "'train.epochs=1' sets what `vary:` sets", 8),
        (f", reference: {TEPO}", EPOCHS, "", "the paper printed no sweep", 4),
        ("", EPOCHS, ", vary: {train.steps: []}", "names no values", 8),
        ('}\n  - {label: "a, x=1", objective: gspo', X, "", "labelled alike", 7),
        ("", CLIP, ", drawn: clib", "unknown axis of `vary:` 'clib'", 12),
    ],
)  # fmt: skip
def test_a_mistake_names_file_line_and_key(
    row: str, text: str, scale: str, what: str, line: int, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        study(tmp_path, ROWS % row + text + SCALES % scale)
    assert what in caught.value.what
    assert f"mine.yaml:{line}" in caught.value.where


def test_steps_are_in_the_setting_or_in_the_label(tmp_path: Path) -> None:
    text = (ROWS % "").replace("label: b", 'label: "b {steps}"') + "vary: {train.%s: [1]}\n" + SCALES.replace("%s", "")
    with pytest.raises(UserError, match="the setting names the steps"):
        study(tmp_path, text % "steps")
    assert make_plan(study(tmp_path, text % "epochs"), "laptop", store=tmp_path)[1].label == "b 36, epochs=1"


def test_the_command_line_cannot_set_what_varies(tmp_path: Path) -> None:
    """Every setting would be one run under several labels."""
    with pytest.raises(UserError, match=r"train\.learning_rate is what the study stability varies"):
        plan_all(["stability"], "laptop", store=tmp_path, overrides=["train.learning_rate=1e-4"])


DRAWN = ', drawn: clip, overrides: ["data.benchmarks=[add3]"]'


def test_a_drawn_axis_is_pooled_where_a_row_has_all_of_it(tmp_path: Path) -> None:
    """With one environment unmeasured the mean over the others would be of another population."""
    mine = study(tmp_path, ROWS % "" + CLIP + SCALES.replace("[0]", "[0, 1]") % DRAWN)
    units = make_plan(mine, "laptop", store=tmp_path / "runs")

    def pooled() -> list[float | None]:
        blocks = table_from_store(mine, units).blocks[:2]
        assert [block.title.partition(" in the mean over ")[2][:4] for block in blocks] == ["clip"] * 2
        return [row.cells[0].mean for block in blocks for row in block.rows]

    assert pooled() == [None, None]
    for unit in units[:-1]:
        finish(unit, 0.8 if unit.row.label == "b" else 0.5)
    first, second = pooled()
    assert second is None
    assert first == pytest.approx(30, abs=8)  # drawn: 60 problems, 2 seeds, 2 settings
