"""Every setting of every kind as docs/objectives.md gives it: its default, its bounds, its words.

Written down apart from the classes that hold them: a changed default changes what a configuration trains."""

from typing import Any

import pytest

from tepo.common.errors import UserError
from tepo.objectives import load_objective, objective_mapping
from tepo.objectives.explain import explain

BASE = {"advantage": "group_normalized", "ratio": "token", "surrogate": "ppo_clip", "aggregation": "token_mean"}
EPS = (1e-6, 0, None)
STD = (True, True, False)
OVER = ("mini_batch", "group", "micro_batch")
SCOPE = ("mini_batch", "micro_batch")
FAILURES = ("zero", "inverse_entropy")
LEVEL = ("token", "sequence")
STATISTICS = ("group", "batch")

# A number is (default, smallest, largest), or (default,) without bounds of its own;
# a word or a switch is (default, the others …).
SETTINGS: dict[str, dict[str, dict[str, tuple[Any, ...]]]] = {
    "advantage": {
        "group_normalized": {"std": STD, "eps": EPS},
        "entropy_term": {"alpha": (0.4, 0, None), "kappa": (2.0, 1, None), "std": STD, "eps": EPS},
        "gpg": {"alpha": ("valid_groups", "nonzero_rewards", "none"), "std": (False, True), "eps": EPS},
        "leave_one_out": {},
        "batch_whitened": {"eps": (1e-8, 0, None)},
        "gtpo": {
            "alpha": (0.1, 0, None),
            "failures": FAILURES,
            "counted": ("successful", "all"),
            "statistics": STATISTICS,
            "entropy_floor": (0.0, 0, None),
            "eps": EPS,
        },
        "gtpo_clipped": {
            "alpha1": (0.9,),
            "alpha2": (0.1,),
            "kappa": (2.0,),
            "length_buffer": (0.2, 1e-6, 1),
            "length_term": ("continuous", "as_printed"),
            "statistics": STATISTICS,
            "eps": EPS,
        },
        "mean_normalized": {},
        "length_weighted": {},
        "pass_at_k": {"k": (2, 1, None), "eps": EPS},
        "best_of_group": {"std": STD, "eps": EPS},
        "batch_scaled": {"eps": EPS},
        "decoupled": {"eps": EPS},
        "grpo_s": {
            "beta": (0.1, 0, None),
            "failures": FAILURES,
            "entropy_mean": ("arithmetic", "geometric"),
            "entropy_floor": (0.0, 0, None),
            "eps": EPS,
        },
    },
    "ratio": {
        "token": {},
        "sequence": {
            "mean": ("geometric", "arithmetic", "product"),
            "gradient": ("full", "local", "line_21"),
            "to": ("old", "sampler"),
        },
        "prefix": {"gradient": ("local", "full")},
        "none": {},
    },
    "surrogate": {
        "ppo_clip": {"low": (0.2, 0, None), "high": (0.2, 0, None), "dual": (None, 1, None)},
        "paper_clip": {"low": (0.2, 0, None), "high": (0.28, 0, None)},
        "unclipped": {},
        "log_prob": {},
        "cispo": {"low": (None, 0, None), "high": (0.28, 0, None)},
        "sapo": {"tau_positive": (1.0, 1e-6, None), "tau_negative": (1.05, 1e-6, None)},
        "geometric_clip": {"low": (0.4, 0, None), "high": (0.4, 0, None)},
        "divergence_mask": {
            "divergence": ("tv", "kl"),
            "low": (0.2, 0, None),
            "high": (0.2, 0, None),
            "sides": ("away", "both"),
        },
        "hard_clip": {"low": (0.2, 0, None), "high": (0.28, 0, None), "of": ("ratio", "log_ratio")},
        "gamma_weight": {
            "power_positive": (2.0, 0, None),
            "decay_positive": (3.0, 1e-4, None),
            "power_negative": (3.0, 0, None),
            "decay_negative": (2.0, 1e-4, None),
        },
    },
    "weight": {
        "uniform": {},
        "clip_cov": {"fraction": (2e-4, 0, 1), "low": (1.0, None, None), "high": (5.0, None, None), "scope": SCOPE},
        "steer": {
            "form": ("code", "theorem"),
            "shape": ("exponential", "linear"),
            "floor": (0.8, 1e-6, None),
            "ceiling": (1.0, 1e-6, None),
            "scale_floor": (0.02, 0, None),
            "scope": SCOPE,
        },
        "off_policy_mask": {"threshold": (0.5, 0, None)},
        "trust_region_mask": {"estimator": ("k2", "k3"), "over": ("max", "mean"), "high": (2.5, 0, None)},
        "top_entropy": {
            "fraction": (0.2, 0, 1),
            "mean_over": ("tokens", "kept"),
            "ties": ("draw", "first"),
            "scope": SCOPE,
        },
    },
    "correction": {
        "none": {},
        "truncated": {"level": LEVEL, "cap": (2.0, 1e-6, None), "floor": (0.0, 0, None), "normalize": (False, True)},
        "masked": {"level": LEVEL, "low": (0.5, 0, None), "high": (5.0, 1e-6, None), "normalize": (False, True)},
        "rejected": {
            "estimator": ("k1", "k2", "k3"),
            "over": ("mean", "token", "sum", "max"),
            "low": (0.5, 0, None),
            "high": (2.0, 0, None),
            "cap": (None, 1e-6, None),
        },
    },
    "penalty": {
        "kl": {
            "coefficient": (0.001, None, None),
            "estimator": ("k3", "k1", "k2", "abs", "r_k3", "k2_response", "full"),
            "anchor": ("old", "initial"),
            "tokens": (
                "all",
                "positive_advantage_falling_entropy",
                "negative_advantage_rising_entropy",
                "either",
                "top_covariance",
            ),
            "entropy_change": ("measured", "covariance", "omega"),
            "tolerance": (1e-6, 0, None),
            "fraction": (2e-3, 0, 1),
            "mean_over": ("tokens", "masked"),
            "scope": SCOPE,
        },
        "entropy": {"coefficient": (0.001, None, None)},
    },
    "aggregation": {
        "token_mean": {"over": OVER},
        "seq_mean_token_mean": {"over": OVER},
        "seq_mean_token_sum": {"over": OVER},
        "seq_mean_token_sum_norm": {"constant": (None, 1e-6, None), "over": OVER},
    },
    "overlong": {"keep": {}, "punish": {"buffer": (0.2, 1e-6, 1), "factor": (1.0, 0, None)}, "filter": {}},
}
KINDS = [(axis, kind) for axis, kinds in SETTINGS.items() for kind in kinds]
EVERY = [(axis, kind, key) for axis, kind in KINDS for key, values in SETTINGS[axis][kind].items() if len(values) > 1]
# What a setting needs beside it to have a say, or to leave room for its bounds.
BESIDE = {
    ("weight", "steer", "scale_floor"): {"shape": "exponential"},
    ("weight", "steer", "floor"): {"shape": "linear", "ceiling": 1e10},
    ("weight", "steer", "ceiling"): {"shape": "linear", "floor": 1e-6},
    ("weight", "clip_cov", "low"): {"high": 1e10},
    ("weight", "clip_cov", "high"): {"low": -1e10},
    ("penalty", "kl", "entropy_change"): {"tokens": "either"},
    ("penalty", "kl", "tolerance"): {"tokens": "either"},
    ("penalty", "kl", "fraction"): {"tokens": "top_covariance"},
    ("penalty", "kl", "mean_over"): {"tokens": "either"},
    ("penalty", "kl", "scope"): {"tokens": "top_covariance"},
    ("advantage", "gpg", "eps"): {"std": True},
    ("correction", "truncated", "cap"): {"floor": 0.0},
    ("correction", "truncated", "floor"): {"cap": 1e10},
    ("correction", "masked", "low"): {"high": 1e10},
    ("correction", "masked", "high"): {"low": 0.0},
    ("correction", "rejected", "low"): {"high": 1e10},
    ("correction", "rejected", "high"): {"low": 0.0},
    ("correction", "rejected", "over"): {"estimator": "k2"},
}


def mapping(axis: str, kind: str, **settings: Any) -> dict[str, Any]:
    """An objective with this kind on one axis, the others such that it fits."""
    found: dict[str, Any] = {**BASE, axis: {"level" if axis == "ratio" else "kind": kind, **settings}}
    if kind == "log_prob" or (axis, kind) == ("ratio", "none"):
        found |= {"surrogate": "log_prob", "ratio": "none"}
    if kind == "geometric_clip":
        found["ratio"] = "sequence"
    if axis == "penalty":
        found["penalty"] = [found["penalty"]]
    return found


def settings_of(axis: str, source: dict[str, Any]) -> dict[str, Any]:
    """What an objective of this mapping has on an axis, the word for its kind left out."""
    found = objective_mapping(load_objective(source))[axis]
    found = dict(found[0] if axis == "penalty" else found)
    del found["level" if axis == "ratio" else "kind"]
    return found


@pytest.mark.parametrize(("axis", "kind"), KINDS)
def test_defaults(axis, kind):
    expected = {key: values[0] for key, values in SETTINGS[axis][kind].items()}
    assert settings_of(axis, mapping(axis, kind)) == expected


@pytest.mark.parametrize(("axis", "kind"), KINDS)
def test_every_default_has_a_meaning_and_a_source(axis, kind):
    for part in explain(load_objective(mapping(axis, kind))).constants:
        assert part.meaning, part
        assert part.source or part.key == "penalty.tokens", part


@pytest.mark.parametrize(("axis", "kind", "key"), EVERY)
def test_bounds_and_words(axis, kind, key):
    """A bound itself is taken, what lies beyond it is not; every word is taken, no other is."""
    default, *rest = SETTINGS[axis][kind][key]
    beside = BESIDE.get((axis, kind, key), {})

    def take(value: Any) -> Any:
        return settings_of(axis, mapping(axis, kind, **beside, **{key: value}))[key]

    if isinstance(default, str | bool):
        for word in (default, *rest):
            assert take(word) == word
        refused: list[Any] = [1 if isinstance(default, bool) else "another"]
    else:
        low, high = rest
        for value, beyond in ((low, -1e9), (high, 10**9 if isinstance(default, int) else 1e9)):
            assert take(beyond if value is None else value) == (beyond if value is None else value)
        refused = [] if low is None else [low - 1e-7, -1.0]
        refused += [] if high is None else [high + 1e-7, 2.0]
        refused += ["many"]
    for value in refused:
        with pytest.raises(UserError, match=key):
            take(value)


@pytest.mark.parametrize(
    ("alpha1", "alpha2", "kappa", "fits"),
    [
        (1.0, 0.0, 2.0, True),
        (1.1, -0.1, 2.0, False),
        (0.5, 0.5, 1.0, True),
        (0.4, 0.6, 1.0, False),
        (0.9, 0.1, 8.9, True),
        (0.9, 0.1, 9.1, False),
        (0.9, 0.1, 0.9, False),
        (0.9, 0.2, 2.0, False),
        (0.8, 0.1, 2.0, False),
    ],
)
def test_the_constants_of_gtpo_clipped_bound_each_other(alpha1, alpha2, kappa, fits):
    """alpha1 + alpha2 = 1 and 1 <= kappa <= alpha1/alpha2 (GTPO 4.5.1), none of them negative."""
    given = mapping("advantage", "gtpo_clipped", alpha1=alpha1, alpha2=alpha2, kappa=kappa)
    if fits:
        assert load_objective(given).advantage.kappa == kappa
    else:
        with pytest.raises(UserError, match=r"alpha1|kappa"):
            load_objective(given)
