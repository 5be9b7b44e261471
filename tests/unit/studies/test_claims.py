from pathlib import Path

import pytest

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.splits import split_of
from tepo.studies.claims import load_claims, read_claims, study_of
from tepo.studies.plan import make_plan
from tepo.studies.plan_studies import plan_all
from tepo.studies.planned_facts import measured_studies
from tepo.studies.record_runs import folder_of, plan_by_folder, recorded_names
from tepo.studies.study import load_study, study_names
from tests.support.claims import BASES, text
from tests.support.runs import write

ONE = text(first="{at_least: 5}", later="{at_least: 5}")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file of claims."""
    write(tmp_path / "experiments/claims.yaml", ONE)
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    return tmp_path / "experiments/claims.yaml"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{at_least: 5}", "{between: [2, -2]}", "two rising ends"),
        (", 107]", "]", "fewer than 8 seeds"),
        (", 107]", ", 107]\n    bases: {a: [train.warmup_steps=1]}", "fewer than 5 bases"),
        ("{at_least: 5}", "{at_least: 5}\n    measure: clipped", "`clipped` is of A alone"),
        ("objective: grpo_dapo", "objective: grpo_dap", "did you mean 'grpo_dapo'"),
        ("train.steps=2", "seed=2", "seed cannot be an override"),
        ("name: later", "name: active_clip", "two claims are named 'active_clip'"),
    ],
)
def test_mistakes_name_file_line_and_key(own: Path, old: str, new: str, message: str) -> None:
    assert old in ONE
    own.write_text(ONE.replace(old, new, 1))
    with pytest.raises(UserError, match="(?s)" + message) as error:
        load_claims()
    assert f"{own}:" in str(error.value)


def test_a_bad_draft_stops_what_wants_its_claims_alone(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own.write_text(ONE.replace("sentence", "sentense"))
    store = tmp_path / "runs"
    with pytest.raises(UserError, match="unknown study"):
        plan_all(["gtpoo"], "laptop", store=store)
    assert [study.name for study, _ in plan_all(["active_clip"], "laptop", store=store)] == ["active_clip"]
    assert len(plan_by_folder(["claims-1"], "laptop", store)["claims-1"]) > 1
    assert "claims-1" in recorded_names("laptop")
    write(store / "run/config.json", "{}")
    assert measured_studies("single_gpu", store) == []
    assert "claims are left out: " in capsys.readouterr().err
    for name in ("claims", "first"):
        with pytest.raises(UserError) as caught:
            plan_all([name], "laptop", store=store)
        assert str(own) in caught.value.where
    with pytest.raises(UserError, match=r"claims\.yaml"):
        plan_by_folder(["own-claims-1"], "laptop", store)


def test_claims_of_ones_own_stand_beside_those_that_ship(own: Path, tmp_path: Path) -> None:
    """They are families of their own, with folders of records of their own, whatever their batch is called."""
    own.write_text("batches: {1: fixed order}\n" + ONE)
    *shipped, first, later = load_claims().claims
    assert (shipped[0].name, shipped[0].family, first.family) == ("active_clip", "claims-1", "own-claims-1")
    assert ([one.name for one in (first, later)], first.in_order) == (["first", "later"], True)
    assert {claim.family for claim in shipped if claim.in_order} == {"claims-6"}
    assert not any(claim.file == own for claim in shipped)
    assert folder_of("own-claims-1") == tmp_path / "records" / "own-claims-1"
    assert folder_of("claims-1") == paths.shipped("experiments").parent / "records" / "claims-1"
    plans = plan_by_folder(["own-claims-1"], "laptop", tmp_path / "runs")
    assert {name: [study.name for study, _ in plan] for name, plan in plans.items()} == {
        "own-claims-1": ["first", "later"]
    }


SHOWN = ("smaller_step", "tuned_again", "bases", "long_sparse")  # made of runs of claims, and choose nothing by them


def test_the_shipped_claims_use_seeds_and_problems_of_their_own() -> None:
    used: dict[str, set[int]] = {"laptop": set(load_study("tuned_again").scales["laptop"].tune.seeds)}
    for study in (load_study(name) for name in study_names() if name not in SHOWN):
        for name, scale in study.scales.items():
            used.setdefault(name, set()).update(scale.seeds)
    drawn = {one.seed for name in paths.names("evals") if (one := load_benchmark(name).procedural)}
    claims = load_claims()
    for claim in claims.claims:
        assert not used[claim.scale] & set(claim.seeds)
        assert claim.problems not in drawn


def test_a_claim_is_a_study_that_shares_runs_with_others(tmp_path: Path) -> None:
    """At the shipped settings the baseline of a claim is the run of Table 1 at its seed, measured on new problems."""
    claim = next(claim for claim in load_claims().claims if claim.name == "clip_cov")
    units = make_plan(study_of(claim), "laptop", store=tmp_path)
    table = make_plan(load_study("table1"), "laptop", store=tmp_path, seeds=claim.seeds)
    assert len(units) == 2 * len(claim.seeds)
    same = [unit.id for unit in table if unit.row.label == "w. GRPO/DAPO"]
    assert [unit.id for unit in units[: len(same)]] == same
    assert units[0].config.data.benchmarks == [f"{name}:problems7101" for name in table[1].config.data.benchmarks]


def test_claims_keep_their_seeds_and_settings_beside_other_studies(own: Path, tmp_path: Path) -> None:
    words = ("train.steps=3", "data.benchmarks=[max4]")
    *claimed, panel = plan_all(["claims", "table4"], "laptop", store=tmp_path, seeds=[5], overrides=words)
    (units,) = (units for study, units in claimed if study.name == "first")
    assert {unit.seed for unit in units} == set(range(100, 108))
    assert {unit.config.train.steps for unit in units} == {2}
    assert units[0].config.data.benchmarks == ["add3:problems9"]
    assert {(unit.seed, unit.config.train.steps) for unit in panel[1]} == {(5, 3)}


def test_a_claim_is_run_at_its_own_scale(own: Path, tmp_path: Path) -> None:
    own.write_text(ONE.replace("    rule:", "    scale: single_gpu\n    rule:", 1))
    for scale, own_ones in (("laptop", {"later"}), ("single_gpu", {"first"})):
        names = {study.name for study, _ in plan_all(["claims"], scale, store=tmp_path)}
        assert names & {"first", "later"} == own_ones
    ((_, units),) = plan_all(["first"], "laptop", store=tmp_path)
    assert {unit.config.scale for unit in units} == {"single_gpu"}


def test_a_claim_over_bases_is_run_from_each_of_them(tmp_path: Path) -> None:
    write(path := tmp_path / "claims.yaml", ONE.replace("    problems: 9", f"    bases: {{{BASES}}}\n    problems: 9"))
    claim = read_claims(path).claims[0]
    units = make_plan(study_of(claim), "laptop", store=tmp_path)
    assert len({unit.id for unit in units}) == 2 * 8 * 5


def test_new_problems_are_of_the_test_split_and_mostly_others() -> None:
    old, new = load_benchmark("add3"), load_benchmark("add3:problems9")
    prompts = {problem.prompt for problem in new.load_problems()}
    assert len(prompts) == old.count
    assert {split_of(prompt) for prompt in prompts} == {"test"}
    assert len(prompts & {problem.prompt for problem in old.load_problems()}) < 0.05 * old.count
    assert new.fingerprint != old.fingerprint
    assert new.name == "add3:problems9"
    for name in ("add3:problems", "add3:problems07", "add3:2811", "aime24:problems9"):
        with pytest.raises(UserError, match="unknown variant"):
            load_benchmark(name)
