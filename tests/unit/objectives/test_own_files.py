"""Kinds in a Python file of the user's: loaded by what names the file, part of a run's id, kept with the run; mistakes
in it are errors with a line, and `tepo check-objective` finds what must not hold."""

import json
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.jobs.model_card import card_of, write_card
from tepo.launch.local import why
from tepo.objectives import load_objective, objective_mapping
from tepo.objectives.explain import explain, to_text
from tepo.objectives.testing.checks import CHECKS, check_objective
from tepo.store.checkpoint_files import TensorFile
from tepo.store.run_folder import RunFolder
from tepo.store.run_id import identity, run_id
from tepo.studies.plan import forget
from tepo.studies.plan_studies import plan_all
from tepo.training.checkpoints.saver import Saver
from tepo.training.preflight import check_settings
from tests.integration.commands import tepo

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_method"
CODE = (EXAMPLE / "kinds" / "spo.py").read_text()
AXES = "advantage: group_normalized\nratio: token\nsurrogate: {kind: spo}\naggregation: token_mean\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of TEPO_PATH with kinds/spo.py and an objective that takes its kind."""
    for folder in ("kinds", "objective"):
        (tmp_path / folder).mkdir()
    (tmp_path / "kinds" / "spo.py").write_text(CODE)
    (tmp_path / "objective" / "mine.yaml").write_text("kinds: spo\n" + AXES)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path


def changed(own: Path, old: str, new: str) -> Path:
    """The file with one piece of its code replaced."""
    assert old in CODE
    path = own / "kinds" / "spo.py"
    path.write_text(CODE.replace(old, new))
    return path


def line_of(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_the_example_has_at_most_thirty_lines_and_passes_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(CODE.splitlines()) <= 30
    monkeypatch.setenv("TEPO_PATH", str(EXAMPLE))
    assert [check.name for check in check_objective(load_objective("my_spo")) if check.wrong] == []


def test_the_page_shows_the_files_of_the_example() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "library.md").read_text()
    assert f"```python\n{CODE}```" in page
    assert f"```yaml\n{(EXAMPLE / 'objective' / 'my_spo.yaml').read_text()}```" in page


@pytest.mark.parametrize("named", ["spo", "../kinds/spo.py", "[spo]"])
def test_a_name_or_a_path_finds_the_file(named: str, own: Path) -> None:
    (own / "objective" / "mine.yaml").write_text(f"kinds: {named}\n{AXES}")
    objective = load_objective("mine")
    assert type(objective.surrogate).__name__ == "Spo"
    assert load_objective(objective_mapping(objective)) == objective
    assert load_objective(compose(["objective=mine"]).objective) == objective


def test_the_command_line_names_a_file_for_a_shipped_objective(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own)
    for named in ("spo", "kinds/spo.py"):
        words = ["objective=grpo_dapo", f"objective.kinds={named}", "objective.surrogate=spo"]
        assert type(load_objective(compose(words).objective).surrogate).__name__ == "Spo"


def test_only_the_objective_that_names_the_file_has_its_kinds(own: Path) -> None:
    load_objective("mine")
    with pytest.raises(UserError, match=r"unknown surrogate\.kind 'spo'"):
        load_objective(compose(["objective=grpo_dapo", "objective.surrogate=spo"]).objective)


def test_the_content_is_part_of_the_id_and_the_location_is_not(own: Path) -> None:
    first = run_id(compose(["objective=mine"]))
    (own / "kinds" / "other_name.py").write_text(CODE)
    (own / "objective" / "mine.yaml").write_text("kinds: other_name\n" + AXES)
    assert run_id(compose(["objective=mine"])) == first
    (own / "kinds" / "other_name.py").write_text(CODE.replace("** 2", "** 4"))
    assert run_id(compose(["objective=mine"])) != first


def test_python_of_somebody_else_is_executed_on_request_alone(own: Path) -> None:
    """Neither explained nor put on a card; the reader's own needs no word."""

    def trained() -> tuple[RunFolder, tuple[str, ...]]:
        config = compose(["objective=mine", "train.steps=1", f"store={own}/runs"])
        run = RunFolder.of(config)
        run.create(config)
        run.append_metrics({"training/global_step": 1})
        with Saver(run) as saver:
            saver.save(1, {}, lambda folder: [TensorFile("model.safetensors", {})])
        run.mark("finished", steps=1)
        return run, ("explain", str(run.path), "--store", str(own / "runs"))

    run, explained = trained()
    mine = tepo(*explained)
    assert (mine.returncode, mine.stderr) == (0, "")
    card = card_of(run)
    assert "$$" in card
    moved = (own / "kinds" / "spo.py").rename(own / "spo.py")
    assert "$$" in card_of(run, (CODE,))  # named by its path, as training knows
    moved.rename(own / "kinds" / "spo.py")

    (own / "kinds" / "spo.py").write_text(f"open({str(own / 'executed')!r}, 'w')\n{CODE}")
    mine_id = run.path.name
    run, explained = trained()  # by a stranger
    (own / "kinds" / "spo.py").write_text(CODE)
    (own / "executed").unlink(missing_ok=True)
    saved = json.loads(run.config_file.read_text())
    (name,) = saved["full"]["objective"]["kinds"]
    for words in (explained, ("explain", "tepo", "--vs", run.path.name, "--store", str(own / "runs"))):
        refused = tepo(*words, code=2)
        assert f"the run keeps Python that is not in kinds/ of your TEPO_PATH: {name}" in refused.stderr
        assert "--trust" in refused.stderr
    assert "`mine`: its Python is in the run's `config.json`." in write_card(run).read_text()
    card = card.replace(mine_id, run.path.name)
    (run.checkpoint(1) / "README.md").write_text(card)  # as training wrote it
    assert write_card(run).read_text().split("## Command")[0] == card.split("## Command")[0]
    assert not (own / "executed").exists()

    before = run.config_file.read_text()
    saved["full"]["objective"]["kinds"] = str(changed(own, "** 2", "** 4").rename(own / "elsewhere.py"))
    run.config_file.write_text(json.dumps(saved))  # a path in place of the text
    tepo(*explained, code=2)
    run.config_file.write_text(before)
    trusted = tepo(*explained, "--trust")
    assert "(r_t - 1)^2" in trusted.stdout, trusted.stderr
    assert (own / "executed").exists()


def test_a_file_that_changes_after_the_plan_is_another_run(own: Path) -> None:
    (own / "ablations").mkdir()
    study = "title: T\nrows: [{label: A, objective: mine}]\nscales: {laptop: {models: [laptop], seeds: [0]}}\n"
    (own / "ablations" / "few.yaml").write_text(study)
    ((_, (unit,)),) = plan_all(["few"], "laptop", store=own / "runs")
    unit.folder.mkdir(parents=True)
    unit.run.log.touch()
    assert why(unit, "exit code 1") == "exit code 1"
    changed(own, "** 2", "** 4")
    assert unit.id not in (now := why(unit, "exit code 1"))
    assert now.startswith("a file that it is made of changed after the plan: it is run ")
    forget()  # as `tepo.run` does each time
    ((_, (later,)),) = plan_all(["few"], "laptop", store=own / "runs")
    assert f"run {later.id} now" in now


def test_no_id_of_an_objective_without_the_key_changes() -> None:
    config = compose(["objective=tepo"])
    assert "kinds" not in identity(config)["config"]["objective"]
    assert "kinds" not in objective_mapping(load_objective("tepo"))


def test_a_run_keeps_the_file_and_is_explained_from_it(own: Path) -> None:
    config = compose(["objective=mine", "objective.surrogate.width=0.3", f"store={own}/runs"])
    run = RunFolder.of(config)
    run.create(config)
    for file in (own / "kinds" / "spo.py", own / "objective" / "mine.yaml"):
        file.unlink()
    kept = load_objective(json.loads(run.config_file.read_text())["full"]["objective"])
    assert "|A| (r_t - 1)^2 / 0.6" in to_text(explain(kept))


MISTAKES = [
    ("    needs = Needs()", "    needs = Needs(", "not valid Python", "    needs = Needs("),
    ("needs = Needs()", "needs = Neds()", "NameError: name 'Neds' is not defined", "Neds"),
    ("import Carried", "import Carreid", "ImportError", "import Carreid"),
    ("    only_ratio = None\n", "", "surrogate 'spo' lacks `only_ratio: Ratio | None`", "class Spo"),
    ("def gain(self, terms: Terms)", "def gain(self)", "has 'gain' as `def gain(self) ", "def gain"),
    ("needs = Needs()", "needs = None", "'needs' of Spo is NoneType, not Needs", "class Spo"),
    ("frozen=True", "frozen=False", "surrogate 'spo' is not frozen", "class Spo"),
    ("@dataclass(frozen=True)\n", "", "surrogate 'spo' is no dataclass", "KINDS"),
    ('option(0.2, "where the slope turns", source="SPO 2401.16025", low=1e-6)', "0.2", "does not say", "class Spo"),
    ("width: float", "width: 'flot'", "name 'flot' is not defined", "class Spo"),
    ('KINDS = {"surrogate"', 'KINDS = {"surogate"', "unknown axis 'surogate'", "KINDS"),
    ('{"spo": Spo}', "Spo", "no mapping of names to classes", "KINDS"),
    ("KINDS =", "KIND =", "the file names no kinds", ""),
    ('{"spo": Spo}', '{"sapo": Spo}', "the name of a shipped kind: surrogate 'sapo'", "KINDS"),
    ("return Gain(", "return (", "'gain' returns Tensor; expected: Gain", "def gain"),
    ("terms.advantages.abs()", "terms.advantage.abs()", "AttributeError", "terms.advantage.abs()"),
]


@pytest.mark.parametrize(("old", "new", "what", "line"), MISTAKES, ids=[one[2] for one in MISTAKES])
def test_a_broken_file_is_an_error_with_its_line(old: str, new: str, what: str, line: str | None, own: Path) -> None:
    path = changed(own, old, new)
    with pytest.raises(UserError) as caught:
        check_settings(compose(["objective=mine"]))  # what training does before it starts
    assert what in caught.value.what
    assert caught.value.where == str(path) if line is None else f"{path}:" in caught.value.where
    if line:
        assert caught.value.where == f"{path}:{line_of(path, line)}"
    assert caught.value.exit_code == 2


def test_a_file_that_is_missing_or_not_used(own: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'spo'"):
        compose(["objective=mine", "objective.kinds=spoo"])
    with pytest.raises(UserError, match=r"nothing\.py cannot be read"):
        compose(["objective=mine", "objective.kinds=nothing.py"])
    with pytest.raises(UserError, match="no axis takes a kind of"):
        load_objective(compose(["objective=tepo", "objective.kinds=spo"]).objective)


PLAIN = "        return Gain(terms.ratio * terms.advantages - bend)"
CHEATS = {
    "micro-batches": "        return Gain((terms.ratio - terms.ratio.detach().mean()) * terms.advantages)",
    "order": "        return Gain(terms.ratio * terms.advantages * terms.ratio.new_tensor(range(len(bend))))",
    "ranks": "        return Gain(terms.ratio * terms.advantages * len(terms.ratio))",
    "gradient": "        return Gain(terms.ratio * terms.advantages * terms.ratio.new_tensor(terms.ratio.tolist()))",
    "finite": "        return Gain(terms.ratio * terms.advantages / terms.advantages.abs().max())",
    "needs": "        return Gain(terms.ratio * terms.advantages * terms.batch.old_entropies)",
}


@pytest.mark.parametrize("name", CHEATS)
def test_each_check_finds_what_it_is_for(name: str, own: Path) -> None:
    changed(own, PLAIN, CHEATS[name])
    failed = [check.name for check in check_objective(load_objective("mine")) if check.wrong]
    assert name in failed


def wrong_of(name: str) -> str:
    """What one check finds wrong with `mine`."""
    return next(check.wrong for check in check_objective(load_objective("mine")) if check.name == name)


def test_what_is_detached_must_be_declared(own: Path) -> None:
    path = changed(own, PLAIN, "        return Gain(terms.ratio * terms.ratio.detach() * terms.advantages)")
    where = f"surrogate Spo ({path}:{line_of(path, 'class Spo')})"
    assert wrong_of("gradient") == f"something is detached that `explained` does not name: {where}"
    text = (own / "kinds" / "spo.py").read_text()
    (own / "kinds" / "spo.py").write_text(
        text.replace("Part(Line(text, latex), ", 'Part(Line(text, latex), (), ("w",), ')
    )
    assert wrong_of("gradient") == ""


def test_entropies_must_be_declared_with_their_gradient(own: Path) -> None:
    changed(own, PLAIN, PLAIN.replace(" - bend", " + terms.batch.entropies"))
    text = (own / "kinds" / "spo.py").read_text()
    (own / "kinds" / "spo.py").write_text(text.replace("Needs()", "Needs(entropies=True)"))
    assert "entropies without `entropy_gradient`" in wrong_of("needs")
    (own / "kinds" / "spo.py").write_text(text.replace("Needs()", "Needs(entropies=True, entropy_gradient=True)"))
    assert wrong_of("needs") == ""


def test_an_explanation_must_be_there(own: Path) -> None:
    path = changed(
        own, "return Part(Line(text, latex), coefficient=slope", "return Part(Line('', ''), coefficient=slope"
    )
    wrong = {check.name: check.wrong for check in check_objective(load_objective("mine")) if check.wrong}
    where = f"surrogate Spo.explained ({path}:{line_of(path, 'def explained')})"
    assert wrong == {"explained": f"{where} has no formula.text"}


def test_the_command_ends_with_the_code_of_the_outcome(own: Path) -> None:
    good = tepo("check-objective", "mine", "surrogate.width=0.3")
    assert (good.returncode, good.stdout.count("pass")) == (0, len(CHECKS))
    changed(own, PLAIN, CHEATS["micro-batches"])
    bad = tepo("check-objective", "mine", code=1)
    assert "micro-batches" in bad.stdout
    assert "checks fail" in bad.stderr
    unknown = tepo("check-objective", "mien", code=2)
    assert "'mine'" in unknown.stderr
    changed(own, "    needs = Needs()", "    needs = Needs(")
    broken = tepo("check-objective", "mine", code=2)
    assert f"{own}/kinds/spo.py:" in broken.stderr
