from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.common.files import write_json
from tepo.jobs.validate import problems_hash
from tepo.launch.local import command
from tepo.store.run_id import identity
from tepo.studies.plan import Unit, make_plan
from tepo.studies.plan_studies import plan_all, plan_studies
from tepo.studies.study import Study, parse_study
from tepo.studies.tune import DEFAULT
from tepo.studies.tuning_result import TunedRow, tuned_rows, undecided
from tepo.studies.vary import Setting
from tests.support.results import finish, table_from_store

HEAD = "title: x\nbaseline: a\nrows:\n  - {label: base, base: true}\n"
ROWS = HEAD + "  - {label: a, objective: tepo_no_kl}\n  - {label: b, objective: gspo}\n"
SPACE = "train.learning_rate: {log: [3e-5, 1e-3]}, train.epochs: [1, 2, 4]"
TUNE = "tune: {draws: %d, method: random, seeds: [50, 51], space: {" + SPACE + "}}\n"
SCALES = "scales:\n  laptop: {models: [laptop], seeds: [0, 1], overrides: [train.steps=2, 'data.benchmarks=[add3]']}\n"


def study(folder: Path, text: str) -> Study:
    (folder / "mine.yaml").write_text(text)
    return parse_study(folder / "mine.yaml")


def tuned(folder: Path, draws: int = 3) -> Study:
    return study(folder, ROWS + TUNE % draws + SCALES)


def planned(mine: Study, store: Path) -> list[Unit]:
    ((_, units),) = plan_studies([mine], "laptop", store=store)
    return units


def validate(unit: Unit, share: float, right: dict[str, list[int]] | None = None) -> None:
    """Finish a run and give it a validation. right: of the 4 responses to each problem, by benchmark."""
    unit.folder.create(unit.config, identity(unit.config))
    for step in (1, 2):
        unit.folder.append_metrics({"training/global_step": step})
    unit.folder.mark("finished", steps=2)
    counts = {f"val-aux/{name}/right@4": values for name, values in (right or {}).items()}
    metrics = {"val-core/average": share, **counts}
    write_json(unit.folder.validation_file, {"problems": problems_hash(unit.config), "metrics": metrics})


def validate_all(units: list[Unit], shares: dict[str, list[float]]) -> None:
    """Validate the units of each row in the order of the plan, as many as there are shares."""
    for label, values in shares.items():
        for unit, share in zip((unit for unit in units if unit.row.label == label), values, strict=False):
            validate(unit, share)


def setting_of(row: TunedRow) -> Setting:
    """The setting that was chosen."""
    return row.tried[row.chosen][0].row.setting


# the draws ------------------------------------------------------------------------------------------------------------
def test_every_row_is_drawn_the_same_settings_and_the_base_none(tmp_path: Path) -> None:
    units = planned(tuned(tmp_path), tmp_path)
    settings = tuned(tmp_path).tune_at("laptop").settings
    for label in "ab":
        mine = [unit for unit in units if unit.row.label == label]
        assert [unit.row.setting for unit in mine[::2]] == settings
        assert [unit.seed for unit in mine] == [50, 51] * 3
        assert all(unit.tuning for unit in mine)
    assert [(unit.row.label, unit.tuning) for unit in units if not unit.tuning] == [("base", False)]
    for unit in units[1:]:
        rate, epochs = (unit.row.setting.point[key] for key in ("learning_rate", "epochs"))
        assert (unit.config.train.learning_rate, unit.config.train.epochs) == (float(rate), int(epochs))
        assert len(rate.replace("0.", "").partition("e")[0].lstrip("0").replace(".", "")) <= 3
        assert 3e-5 <= float(rate) <= 1e-3


EVEN = "tune: {draws: %d, seeds: [50, 51, 52]%s, space: {" + SPACE + "}}\n"


def even(folder: Path, draws: int = 16, more: str = "") -> Study:
    return study(folder, ROWS + EVEN % (draws, more) + SCALES)


def test_even_draws_follow_from_the_file_alone(tmp_path: Path) -> None:
    """More draws, axes behind the others, other seeds and a default keep them."""
    drawn = even(tmp_path).tune_at("laptop").settings
    assert even(tmp_path, 40).tune_at("laptop").settings[:16] == drawn
    assert even(tmp_path, 16, ", default: true").tune_at("laptop").settings == [DEFAULT, *drawn]
    text = EVEN % (16, "")
    for more in (text.replace("[50, 51, 52]", "[7]"), text.replace("4]}}", "4], train.warmup_steps: [0, 4]}}")):
        others = study(tmp_path, ROWS + more + SCALES).tune_at("laptop").settings
        for one, other in zip(drawn, others, strict=True):
            assert other.overrides[: len(one.overrides)] == one.overrides
    assert study(tmp_path, ROWS + text.replace("1e-3", "2e-3") + SCALES).tune_at("laptop").settings != drawn


# the default and the shortlist ----------------------------------------------------------------------------------------
SHORT = ", default: true, shortlist: {after: 1, keep: 2}"


def test_the_default_is_the_row_as_it_is_written(tmp_path: Path) -> None:
    mine = even(tmp_path, 2, ", default: true")
    units = planned(mine, tmp_path)
    first = [unit for unit in units if unit.row.label == "a"][:3]
    named = [(unit.label, unit.seed, unit.tuning) for unit in first]
    assert named == [("a, default", seed, True) for seed in (50, 51, 52)]
    plain = [unit for unit in planned(study(tmp_path, ROWS + SCALES), tmp_path) if unit.row.label == "a"]
    assert first[0].overrides[:-1] == plain[0].overrides[:-1]
    validate_all(units, {"a": [0.5, 0.5, 0.5] + [0.4] * 6, "b": [0.3] * 3 + [0.2, 0.3, 0.4] + [0.4] * 3})
    a, b = tuned_rows(units, mine.tune_at("laptop"))
    assert (setting_of(a), b.chosen) == (DEFAULT, 2)
    assert (len(a.known), a.known) == (2, pytest.approx([0.4, 0.4]))  # the default is no draw
    reported = [unit for unit in planned(mine, tmp_path) if not unit.tuning and unit.row.label == "a"]
    assert [(unit.label, unit.seed) for unit in reported] == [("a", 0), ("a", 1)]
    assert [unit.folder.path for unit in reported] == [unit.folder.path for unit in plain]


def test_the_best_of_the_first_seed_go_on_and_only_complete_settings_are_chosen(tmp_path: Path) -> None:
    mine = even(tmp_path, 4, SHORT)
    units = planned(mine, tmp_path)
    assert [unit.seed for unit in units if unit.row.label == "a"] == [50, 51, 52] + [50] * 4
    waiting = [[(unit.row.label, unit.seed) for unit in part] for part in undecided([(mine, units)], None)]
    assert waiting == [[(row, seed) for row in "ab" for seed in seeds] for seeds in ((51, 52, 51, 52), (0, 1))]
    first = {"a": [0.1, 0.2, 0.3, 0.5, 0.9, 0.8, 0.8], "b": [0.6, 0.6, 0.6, 0.1, 0.2, 0.3, 0.4]}
    validate_all(units, {label: values[:-1] for label, values in first.items()})
    assert [row.shortlist for row in tuned_rows(units, mine.tune_at("laptop"))] == [None, None]  # one draw is missing
    for label, values in first.items():
        validate([unit for unit in units if unit.row.label == label][-1], values[-1])
    second = planned(mine, tmp_path)
    assert second[: len(units)] == units
    added = second[len(units) :]
    a, b = tuned_rows(second, mine.tune_at("laptop"))
    assert (a.shortlist, b.shortlist) == ([0, 2, 3], [0, 3, 4])  # of equal ones the first; the default has its place
    third, fourth = (a.tried[index][0].row.setting for index in (2, 3))
    more = [(unit.seed, unit.tuning, unit.row.setting) for unit in added if unit.row.label == "a"]
    assert more == [(seed, True, setting) for setting in (third, fourth) for seed in (51, 52)]
    assert (a.chosen, b.chosen) == (None, None)
    assert undecided([(mine, second)], None)[0] == []
    for unit in added[:-1]:
        validate(unit, 0.1 if unit.row.setting == third else 0.4)
    last = planned(mine, tmp_path)
    a, b = tuned_rows(last, mine.tune_at("laptop"))
    assert a.scores == pytest.approx({0: 0.2, 2: (0.9 + 0.2) / 3, 3: (0.8 + 0.8) / 3})
    assert (a.chosen, b.chosen) == (3, None)  # b lacks a run
    assert [unit.label for unit in last if not unit.tuning] == ["base", "a", "a"]
    validate(added[-1], 0.4)
    assert setting_of(tuned_rows(planned(mine, tmp_path), mine.tune_at("laptop"))[1]) == DEFAULT


# the two phases -------------------------------------------------------------------------------------------------------
def test_a_run_that_chooses_is_validated_and_never_measured(tmp_path: Path) -> None:
    units = planned(tuned(tmp_path), tmp_path)
    for unit in (unit for unit in units if unit.tuning):
        assert ("--validate" in command(unit), "--evaluate" in command(unit)) == (True, False)
        assert unit.missing_benchmarks() == []
        assert (unit.done(), unit.to_measure()) == (False, 0.25)  # 50 of 200 problems
    validate(units[1], 0.5)
    assert (units[1].done(), units[1].to_measure()) == (True, 0)


def test_the_best_mean_is_chosen_and_of_equal_ones_the_first(tmp_path: Path) -> None:
    mine = tuned(tmp_path)
    units = planned(mine, tmp_path)
    validate_all(units, {"a": [0.1, 0.9, 0.5, 0.5, 0.9, 0.1], "b": [0.2, 0.2, 0.4, 0.1, 0.1, 0.7]})
    a, b = tuned_rows(units, mine.tune_at("laptop"))
    assert a.scores == pytest.approx({0: 0.5, 1: 0.5, 2: 0.5}), "equal means"
    assert (a.chosen, b.chosen) == (0, 2)
    after = planned(mine, tmp_path)
    assert after[: len(units)] == units
    reported = after[len(units) :]
    named = [(unit.label, unit.seed, unit.tuning) for unit in reported]
    assert named == [(label, seed, False) for label in "ab" for seed in (0, 1)]
    for unit, row in zip(reported, (a, a, b, b), strict=True):
        assert set(setting_of(row).overrides) < set(unit.overrides)
        assert "--evaluate" in command(unit)
        assert unit.missing_benchmarks() == ["add3"]
    assert undecided([(mine, after)], None) == ([], [])


def test_a_validation_on_other_problems_counts_as_none(tmp_path: Path) -> None:
    unit = planned(tuned(tmp_path), tmp_path)[1]
    validate(unit, 0.5)
    write_json(unit.folder.validation_file, {"problems": "others", "metrics": {"val-core/average": 0.9}})
    assert unit.validation() is None
    unit.folder.validation_file.write_text("{")
    with pytest.raises(UserError, match="the validation is damaged"):
        unit.validation()


def test_the_command_line_cannot_set_what_is_tuned_or_varies_or_report_what_has_chosen(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.epochs is what the study tuned tunes"):
        plan_all(["tuned"], "laptop", store=tmp_path, overrides=["train.epochs=1"])
    with pytest.raises(UserError, match=r"train\.learning_rate is what the study stability varies"):
        plan_all(["stability"], "laptop", store=tmp_path, overrides=["train.learning_rate=1e-4"])
    with pytest.raises(UserError, match="seed 50 chooses the settings"):
        plan_all(["tuned"], "laptop", store=tmp_path, seeds=[7, 50])


# what varies ----------------------------------------------------------------------------------------------------------
PLAIN = "title: x\nbaseline: a\nrows:\n  - {label: a, objective: tepo_no_kl}\n  - {label: b, objective: gspo}\n"
ONE_SEED = "scales:\n  laptop: {models: [laptop], seeds: [0]}\n"
CLIP = """vary:
  train.learning_rate: [1e-4, 4e-4]
  clip:
    paper: [objective.low=0.2, objective.high=0.28]
    tight: [objective.low=0.02, objective.high=0.028]
"""
X = "vary: {x: {1: [train.epochs=1], '1, x=1': [train.epochs=2]}}\n"


def test_axes_cross_each_other_and_the_rows(tmp_path: Path) -> None:
    units = make_plan(study(tmp_path, PLAIN + CLIP + ONE_SEED), "laptop", store=tmp_path)
    settings = [f"learning_rate={rate}, clip={clip}" for rate in ("1e-4", "4e-4") for clip in ("paper", "tight")]
    assert [unit.label for unit in units] == [f"{row}, {setting}" for setting in settings for row in "ab"]
    assert len({unit.id for unit in units}) == len(units)
    bounds = {"paper": (0.2, 0.28), "tight": (0.02, 0.028)}
    for unit in units:
        point, constants = unit.row.setting.point, unit.config.objective["constants"]
        assert unit.config.train.learning_rate == float(point["learning_rate"])
        assert (constants["low"], constants["high"]) == bounds[point["clip"]]


def test_the_base_follows_the_data_of_its_setting(tmp_path: Path) -> None:
    """A mix has its own base and benchmarks; a learning rate has not."""
    vary = "vary: {data: [laptop, laptop_sparse], train.learning_rate: [1e-4, 2e-4]}\n"
    mine = study(tmp_path, HEAD + "  - {label: a, objective: gspo}\n" + vary + ONE_SEED)
    units = make_plan(mine, "laptop", store=tmp_path)
    base = [unit.id for unit in units if unit.row.base]
    assert base[0] == base[1] != base[2] == base[3]


def test_values_of_yaml_become_overrides(tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-7 as text and 2.5e-7 as a number."""
    vary = "vary: {train.keep_best: [on], train.checkpoint_every: [null], train.learning_rate: [2.5e-7, 1e-7]}\n"
    rows = study(tmp_path, PLAIN + vary + ONE_SEED).rows_at("laptop")
    words = ("train.keep_best=true", "train.checkpoint_every=null")
    rates = [(*words, f"train.learning_rate={rate}") for rate in ("2.5e-7", "1e-7") for _ in "ab"]
    assert [row.setting.overrides for row in rows] == rates


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        (ROWS + "tune: {draws: 2, seeds: [1], space: {train.epochs: [1, 2]}}\n", "seed 1 chooses the settings", 9),
        (ROWS + "tune: {draws: 2, seeds: [50], space: {train.epoch: [1, 2]}}\n", "unknown configuration key", 7),
        (ROWS + "tune: {draws: 2, seeds: [50], space: {train.grad_clip: {log: [0, 1]}}}\n", "no logarithm", 7),
        (ROWS + TUNE % 2 + "vary: {train.grad_clip: [1, 2]}\n", "cannot stand beside `vary:`", 7),
        (ROWS + "vary:\n  train.learning_rate:\n    - 1e-4\n    - 0.0001\n", "which are the same", 10),
        (ROWS + "vary:\n  train.steps: [1]\n  b: {x: [train.steps=2]}\n", "train.steps and b both set", 9),
        (ROWS + "vary: {train.steps: [1, 2]}\n", "'train.steps=2' sets what `vary:` sets", 9),
        (ROWS.replace("gspo", "gspo, overrides: [train.epochs=1]") + X, "'train.epochs=1' sets", 6),
        (ROWS.replace("label: b,", 'label: "a, x=1",') + X, "labelled alike", 7),
    ],
)  # fmt: skip
def test_a_mistake_names_file_line_and_key(text: str, what: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        study(tmp_path, text + SCALES)
    assert what in caught.value.what
    assert f"mine.yaml:{line}" in caught.value.where


def test_a_drawn_axis_is_pooled_where_a_row_has_all_of_it(tmp_path: Path) -> None:
    """With one environment unmeasured the mean over the others would be of another population."""
    mine = study(tmp_path, PLAIN + CLIP + SCALES.replace("seeds:", "drawn: clip, seeds:"))
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
