"""Strict loading: every typo is an error that names the nearest valid word; shipped rows are complete and sourced."""

import re
from dataclasses import fields

import pytest
import yaml

from tepo.common.errors import UserError
from tepo.objectives import load_objective, names, objective_mapping
from tepo.objectives.loading import text
from tests.invariants.rows import changed

ISSUE_3 = [
    "grpo",
    "grpo_dapo",
    "dr_grpo",
    "gspo",
    "gspo_token",
    "tepo",
    "tepo_no_kl",
    "tepo_kl_negative",
    "tepo_kl_both",
    "tepo_kl_all",
    "tepo_max_entropy",
    "tepo_min_entropy",
    "clip_cov",
    "kl_cov",
    "entropy_advantage",
    "gpg",
    "cispo",
    "reinforce",
    "prefix_is",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "steer",
    "gtpo",
    "gtpo_clipped",
    "gtpo_v2",
    "grpo_s",
    "grpo_s_v2",
    "gmpo",
    "sapo",
    "luspo",
    "reinforce_pp",
    "rloo",
]


def test_a_file_may_be_a_path_or_its_text(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text("gspo"))
    assert load_objective(str(file)) == load_objective(file)
    with pytest.raises(UserError, match="cannot be read"):
        load_objective(str(tmp_path / "other.yaml"))


def test_all_rows_ship():
    assert set(ISSUE_3) <= set(names())


@pytest.mark.parametrize("name", ISSUE_3)
def test_round_trip(name):
    objective = load_objective(name)
    assert load_objective(objective_mapping(objective)) == objective
    assert load_objective({**yaml.safe_load(text(name)), "name": name}) == objective


@pytest.mark.parametrize("name", ISSUE_3)
def test_shipped_rows_are_short_and_every_number_has_a_source(name):
    lines = text(name).splitlines()
    assert len(lines) <= 8
    assert re.match(r"# \S", lines[0])
    for line in lines[1:]:
        setting, _, comment = line.partition("#")
        assert not re.search(r"\d", setting) or comment.strip(), line


def test_dashes_and_kinds_alone():
    assert load_objective("grpo-dapo") == load_objective("grpo_dapo")
    short = {"advantage": "group_normalized", "ratio": "token", "surrogate": "ppo_clip", "aggregation": "token_mean"}
    assert load_objective(short).surrogate.high == 0.2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"penalty": {"coeficient": 1}}, r"coeficient.*objective.*\n.*did you mean 'coefficient'"),
        ({"penalty": {"estimator": "k4"}}, r"penalty.estimator 'k4'"),
        ({"penalty": {"tokens": "positive_advantage_faling"}}, r"did you mean 'positive_advantage_falling_entropy'"),
        ({"penalty": {"kind": "kll"}}, r"did you mean 'kl'"),
        ({"surrogate": {"low": "small"}}, r"surrogate.low must be a number, not 'small'"),
        ({"surrogate": {"low": -0.1}}, r"surrogate.low must be at least 0, not -0.1"),
        ({"surrogate": {"low": float("nan")}}, r"surrogate.low must be a number"),
        ({"surrogate": {"low": True}}, r"surrogate.low must be a number"),
        ({"ratio": {"level": "sequense"}}, r"did you mean 'sequence'"),
        ({"ratio": {"level": "token", "gradent": "full"}}, r"key of ratio \(level: token\) 'gradent'"),
        (
            {"ratio": {"level": "token", "gradient": "full"}},
            r"ratio.gradient belongs to level: sequence, prefix, not to level: token(.|\n)*objective.ratio=token",
        ),
        ({"advantage": {"std": 1}}, r"advantage.std must be true or false, not 1"),
        ({"agregation": {"kind": "token_mean"}}, r"axis of an objective 'agregation'(.|\n)*did you mean 'aggregation'"),
    ],
)
def test_typos(changes, message):
    mapping = yaml.safe_load(text("tepo"))
    for axis, settings in changes.items():
        mapping[axis] = settings if "level" in settings else {**mapping.get(axis, {}), **settings}
    with pytest.raises(UserError) as error:
        load_objective(mapping)
    assert re.search(message, str(error.value), re.DOTALL), str(error.value)
    assert "objective custom" in str(error.value)


def test_unknown_row():
    with pytest.raises(UserError, match="did you mean 'tepo_no_kl'"):
        load_objective("tepo_nokl")


@pytest.mark.parametrize("axis", ["advantage", "ratio", "surrogate", "aggregation"])
def test_missing_axis(axis):
    mapping = {key: value for key, value in yaml.safe_load(text("tepo")).items() if key != axis}
    with pytest.raises(UserError, match=f"{axis} is missing"):
        load_objective(mapping)


@pytest.mark.parametrize(
    "changes",
    [
        {"ratio": {"level": "none"}},
        {"surrogate": {"kind": "log_prob"}},
        {"surrogate": {"kind": "geometric_clip"}, "ratio": {"level": "token"}},
        {"penalty": [{"kind": "kl", "estimator": "full"}, {"kind": "kl", "estimator": "full", "anchor": "initial"}]},
    ],
)
def test_axes_that_do_not_fit(changes):
    with pytest.raises(UserError):
        load_objective({**yaml.safe_load(text("tepo")), **changes})


def test_numbers_as_yaml_reads_them():
    """YAML takes 1e-3 (no point) for a word."""
    assert (
        load_objective(changed("tepo", {"penalty": {"coefficient": yaml.safe_load("1e-3")}})).penalties[0].coefficient
        == 1e-3
    )


@pytest.mark.parametrize("nothing", [None, "none", [], {"kind": "none"}])
def test_no_penalty(nothing):
    assert load_objective({**yaml.safe_load(text("tepo")), "penalty": nothing}).penalties == ()


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("tepo", {"penalty": {"fraction": 0.1}}, "penalty.fraction"),
        ("tepo", {"penalty": {"scope": "micro_batch"}}, "penalty.scope"),
        ("tepo_kl_all", {"penalty": {"mean_over": "masked"}}, "penalty.mean_over"),
        ("tepo_kl_all", {"penalty": {"tolerance": 0.0}}, "penalty.tolerance"),
        ("kl_cov", {"penalty": {"entropy_change": "omega"}}, "penalty.entropy_change"),
        ("dr_grpo", {"advantage": {"eps": 1e-4}}, "advantage.eps"),
        ("steer", {"weight": {"shape": "linear", "scale_floor": 0.1}}, "weight.scale_floor"),
    ],
)
def test_a_setting_that_would_change_nothing_is_refused(name, changes, key):
    with pytest.raises(UserError, match=f"{key}=.* has no effect"):
        load_objective(changed(name, changes))


@pytest.mark.parametrize(
    ("name", "weight", "message"),
    [
        ("clip_cov", {"low": 5.0, "high": 1.0}, "leave no token to draw"),
        ("steer", {"floor": 1.1}, "weight.floor 1.1 is above weight.ceiling 1"),
        ("steer", {"ceiling": 1.2}, "never reached"),
    ],
)
def test_bounds_that_cross(name, weight, message):
    with pytest.raises(UserError, match=message):
        load_objective(changed(name, {"weight": weight}))


def test_needs():
    needs = {name: load_objective(name).needs for name in ISSUE_3}
    assert {name for name in needs if needs[name].prepass} == {"clip_cov", "kl_cov", "steer"}
    assert {name for name in needs if needs[name].entropy_gradient} == {"tepo_max_entropy", "tepo_min_entropy"}
    assert {name for name in needs if needs[name].entropies} == {
        "tepo",
        "tepo_kl_negative",
        "tepo_kl_both",
        "entropy_advantage",
        "tepo_max_entropy",
        "tepo_min_entropy",
    }
    assert {name for name in needs if needs[name].old_entropies} == {
        "tepo",
        "tepo_kl_negative",
        "tepo_kl_both",
        "steer",
        "gtpo",
        "gtpo_clipped",
        "gtpo_v2",
        "grpo_s",
        "grpo_s_v2",
    }
    assert {name for name in needs if needs[name].initial_logprobs} == {"grpo"}
    assert not any(part.full_kl or part.sampler_logprobs for part in needs.values())
    assert load_objective(changed("tepo", {"penalty": {"entropy_change": "covariance"}})).needs.prepass
    assert load_objective(changed("tepo", {"penalty": {"mean_over": "masked"}})).needs.prepass


KL = {"kind": "kl", "coefficient": 1.0}
ENTROPY = {"kind": "entropy"}


@pytest.mark.parametrize(
    ("name", "changes", "needs"),
    [
        ("grpo_dapo", {}, set()),
        ("tepo", {}, {"entropies", "old_entropies"}),
        ("tepo", {"penalty": {"entropy_change": "omega"}}, {"old_entropies"}),
        ("tepo", {"penalty": {"entropy_change": "covariance"}}, {"prepass"}),
        ("tepo", {"penalty": {"mean_over": "masked"}}, {"entropies", "old_entropies", "prepass"}),
        ("tepo", {"penalty": {"mean_over": "masked", "scope": "micro_batch"}}, {"entropies", "old_entropies"}),
        ("tepo", {"penalty": {"estimator": "full"}}, {"entropies", "old_entropies", "full_kl"}),
        ("tepo_no_kl", {"penalty": {**KL, "estimator": "full", "anchor": "initial"}}, {"full_kl"}),
        ("tepo_no_kl", {"penalty": {**KL, "anchor": "initial"}}, {"initial_logprobs"}),
        ("tepo_no_kl", {"penalty": KL}, set()),
        ("tepo_max_entropy", {}, {"entropies", "entropy_gradient"}),
        ("entropy_advantage", {}, {"entropies"}),
        ("gtpo", {}, {"old_entropies"}),
        ("gtpo_clipped", {}, {"old_entropies", "max_new_tokens"}),
        ("dr_grpo", {}, {"max_new_tokens"}),
        ("dr_grpo", {"aggregation": {"constant": 100}}, set()),
        ("grpo_dapo", {"aggregation": {"over": "group"}}, {"group_ids"}),
        ("grpo_dapo", {"overlong": {"kind": "punish"}}, {"max_new_tokens"}),
        ("grpo_dapo", {"overlong": {"kind": "filter"}}, {"finished"}),
        ("grpo_s", {}, {"old_entropies"}),
        ("clip_cov", {}, {"prepass", "uid"}),
        ("clip_cov", {"weight": {"scope": "micro_batch"}}, {"uid"}),
        ("kl_cov", {}, {"prepass", "uid"}),
        ("kl_cov", {"penalty": {"scope": "micro_batch"}}, {"uid"}),
        ("steer", {}, {"old_entropies", "prepass"}),
        ("steer", {"weight": {"scope": "micro_batch"}}, {"old_entropies"}),
        ("grpo_dapo", {"correction": {"kind": "truncated"}}, {"sampler_logprobs"}),
    ],
)
def test_needs_of_settings(name, changes, needs):
    """All that the trainer has to compute and nothing else: a pass of the model for nothing costs as much as one."""
    found = load_objective(changed(name, changes)).needs
    assert {part.name for part in fields(found) if getattr(found, part.name) is True} == needs
    anchor = changes.get("penalty", {}).get("anchor") if "full_kl" in needs else None
    assert found.full_kl_anchor == (anchor or "old")


def test_needs_of_two_penalties():
    both = load_objective({**yaml.safe_load(text("tepo_no_kl")), "penalty": [{**KL, "anchor": "initial"}, ENTROPY]})
    assert (both.needs.entropy_gradient, both.needs.entropies, both.needs.initial_logprobs) == (True, True, True)
    assert not both.needs.full_kl


def test_settings_are_changed_by_axis_and_key():
    one = load_objective("tepo", {"penalty.coefficient": 1, "surrogate": {"kind": "cispo"}})
    expected = changed("tepo", {"penalty": {"coefficient": 1}, "surrogate": {"kind": "cispo"}})
    assert one == load_objective(expected | {"name": "tepo"})
    assert load_objective("tepo").penalties[0].coefficient != 1  # what ships is left as it is
    several = {**yaml.safe_load(text("tepo_no_kl")), "penalty": [{**KL, "anchor": "initial"}, ENTROPY]}
    assert load_objective(several, {"penalty.1.coefficient": -0.5}).penalties[1].coefficient == -0.5
    assert several["penalty"][1] == ENTROPY
    assert load_objective("dr_grpo", {"aggregation.kind": "token_mean"}).aggregation == one.aggregation  # anew


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"penalty.coeficient": 1}, "did you mean 'coefficient'"),
        ({"penalty.coefficient": "much"}, "must be a number"),
        ({"overlong.buffer": 0.1}, "the objective tepo has no overlong to change"),
        ({"penalty.3.coefficient": 1}, r"there is no penalty\.3"),
        ({"penalty": [{"kind": "entropy"}] * 2, "penalty.coefficient": 1}, "which of the penalties"),
        ({"losses": {}}, "the objective tepo has no losses to change"),
    ],
)
def test_changes_that_cannot_be_meant(changes, message):
    with pytest.raises(UserError, match=message):
        load_objective("tepo", changes)
