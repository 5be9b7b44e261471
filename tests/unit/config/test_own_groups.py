from pathlib import Path

import pytest

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.objectives import load_objective
from tepo.store.run_id import run_id
from tepo.studies.plan import recipe_words
from tepo.studies.study import load_study
from tests.support.commands import tepo
from tests.support.runs import write

OBJECTIVE = """about: "Mine: a narrow clip."
like: grpo_dapo
constants:
  low: {value: 0.1, source: a choice of this test}
  high: {value: 0.1, source: a choice of this test}
"""
STUDY = """
title: mine
baseline: mine
rows:
  - {label: mine, objective: mine}
  - {label: TEPO, objective: tepo, laptop: [train.epochs=1]}
scales:
  brief: {models: [small], seeds: [0]}
  laptop: {models: [small], seeds: [0]}
"""
FILES = {
    "objective/mine.yaml": OBJECTIVE,
    "model/small.yaml": "{name: small, path: 'package:laptop'}",
    "data/sums.yaml": "name: sums\nbase: package:laptop\nprompt: raw\ntasks: {add3: 1}\nbenchmarks: [add3]\n",
    "experiments/ours.yaml": STUDY,
}


def save_files(folder: Path) -> None:
    """The files, and a scale of two steps."""
    for name, text in FILES.items():
        write(folder / name, text)
    laptop = (paths.CONFIG / "scale" / "laptop.yaml").read_text()
    brief = laptop.replace("scale: laptop", "scale: brief").replace("steps: 36", "steps: 2")
    write(folder / "scale" / "brief.yaml", brief)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my folder"
    save_files(folder)
    monkeypatch.setenv("TEPO_PATH", str(folder))
    return folder


def test_each_group_has_the_options_of_the_folder(own: Path) -> None:
    config = compose(["objective=mine", "model=small", "data=sums", "scale=brief"])
    assert load_objective(config.objective).clip.bounds == pytest.approx({"low": 0.1, "high": 0.1})
    assert (config.model.name, config.data.name, config.data.tasks) == ("small", "sums", {"add3": 1})
    assert (config.scale, config.train.steps) == ("brief", 2)


def test_a_file_there_wins_and_the_list_says_so(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = run_id(compose(["objective=gspo"]))
    (own / "objective" / "gspo.yaml").write_text(OBJECTIVE)
    config = compose(["objective=gspo"])
    assert config.objective["constants"]["high"] == 0.1
    assert run_id(config) != shipped
    listed = tepo("list", "--store", own / "none", COLUMNS="1000").stdout
    assert f"\n  * in {own}/objective: gspo, in place of the shipped one; mine\n" in listed
    assert f"\n  * in {own}/data: sums\n" in listed
    assert f"\n  * in {own}/experiments: ours\n" in listed
    assert "\n  gspo* " in listed
    assert "\n  gspo_token  " in listed


def test_a_typo_names_the_nearest_own_name(own: Path) -> None:
    for word, near in {"objective=min": "mine", "model=smal": "small", "scale=brif": "brief"}.items():
        with pytest.raises(UserError) as caught:
            compose([word])
        assert f"did you mean {near!r}" in caught.value.fix
    with pytest.raises(UserError, match="did you mean 'mine'"):
        load_objective("mime")


def test_a_mistake_in_an_own_file_names_its_line(own: Path) -> None:
    (own / "data" / "sums.yaml").write_text("name: sums\nbase: package:laptop\ntaks: {add3: 1}\n")
    with pytest.raises(UserError, match=r"did you mean 'data\.tasks'") as caught:
        compose(["data=sums"])
    assert caught.value.where == f"{own}/data/sums.yaml:3 (data.taks)"
    (own / "data" / "sums.yaml").write_text("name: [sums\n")
    with pytest.raises(UserError, match="not valid YAML") as caught:
        compose(["data=sums"])
    assert caught.value.where.startswith(f"{own}/data/sums.yaml:")


def test_rows_of_a_study_take_them(own: Path) -> None:
    study = load_study("ours")
    assert recipe_words(study, "brief")["small", "mine"] == ("objective=mine", "scale=brief", "model=small")
    assert recipe_words(study, "laptop")["small", "TEPO"][-1] == "train.epochs=1"
    assert recipe_words(study, "brief")["small", "TEPO"][-1] == "objective.beta=1"  # the scale's file
    (own / "experiments" / "ours.yaml").write_text(STUDY.replace("  brief:", "  breif:"))
    with pytest.raises(UserError, match="unknown scale 'breif'") as caught:
        load_study("ours")
    assert "'brief'" in caught.value.fix
