import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tepo.formula.formula import Bounds
from tepo.objectives import load_objective
from tepo.training.engine.torch_engine import TorchEngine
from tepo.training.metrics.step_metrics import PolicyDrift, StepMetrics
from tests.invariants.pipeline import WHOLE, configuration, make_policy
from tests.unit.objectives.flat import by_hand
from tests.unit.training.test_update import GROUPS, rollout_of, update, updater_of

LOG2 = math.log(2)


def moved(clip: Bounds | None, cut: list[list[int]], exact: bool = False) -> dict[str, float]:
    """Of ratios 1/2, 1 and 2 in two responses, the first token alone in one."""
    batch, found = by_hand([0.5, 1.0, 2.0], [1.0, -1.0, 2.0], [1, 2]), PolicyDrift()
    batch = replace(batch, logprobs=batch.logprobs.detach(), full_kl=torch.tensor([0.1, 0.2, 0.6]))
    for part in cut:
        own = batch.select(part)
        found.add(own, own.logprobs - own.old_logprobs)
    return found.metrics(clip, None, exact=exact)


@pytest.mark.parametrize("cut", [[[0, 1]], [[1], [], [0]]])
def test_values_by_hand(cut: list[list[int]]) -> None:
    """d is -log 2, 0, log 2. k1: the mean of -d. k3: of exp d - 1 - d, (1/2 - 1 + log 2) + 0 + (2 - 1 - log 2) over 3.
    Responses: -log 2 and log 2 / 2, which lie 3/4 log 2 from their mean."""
    expected = {
        "actor/realised_kl_k1": 0.0,
        "actor/realised_kl_k3": 0.5 / 3,
        "actor/log_ratio_sd": LOG2 * math.sqrt(2 / 3),
        "actor/sequence_log_ratio_sd": 0.75 * LOG2,
    }
    assert moved(None, cut) == pytest.approx(expected, abs=1e-7)
    found = moved(Bounds("sequence", {"low": 0.2, "high": 0.28}), cut, exact=True)
    distances = {"actor/clip_low_over_sd": 0.2 / (0.75 * LOG2), "actor/clip_high_over_sd": 0.28 / (0.75 * LOG2)}
    assert found == pytest.approx(expected | distances | {"actor/realised_kl_reverse": 0.3}, abs=1e-6)
    token = moved(Bounds("token", {"high": 0.28}), cut)
    assert token["actor/clip_high_over_sd"] == pytest.approx(0.28 / (LOG2 * math.sqrt(2 / 3)))
    assert "actor/clip_low_over_sd" not in token


@pytest.mark.parametrize(
    ("name", "changes", "clip"),
    [
        ("grpo_dapo", {}, ("token", {"low": 0.2, "high": 0.28})),
        ("tepo", {}, ("sequence", {"low": 0.2, "high": 0.28})),
        ("cispo", {}, ("token", {"high": 0.28})),
        ("tepo", {"J": "min(w, clip(w, 1 - low, 1 + high))*A"}, ("sequence", {"high": 0.28})),
        ("gmpo", {}, None),  # its ratio is the response's, its bounds each token's
        ("prefix_is", {}, None),
        ("grpo_s", {}, None),  # an arithmetic mean
        ("sapo", {}, None),
    ],
)
def test_what_a_clip_bounds(name: str, changes: dict[str, str], clip: tuple[str, dict[str, float]] | None) -> None:
    found = load_objective(name, changes).clip
    assert (found and (found.of, found.bounds)) == (clip and (clip[0], pytest.approx(clip[1])))


@pytest.mark.parametrize("budget", [WHOLE, 20])
@pytest.mark.parametrize("name", ["grpo_dapo", "tepo_no_kl"])
def test_a_step_logs_its_last_mini_batch_before_the_last_update(name: str, budget: int) -> None:
    """The token dump holds the log-ratios of the same tokens."""
    engine = TorchEngine(make_policy(torch.float32), configuration(len(GROUPS)).train)
    updater, recorder = updater_of(name, engine, budget), StepMetrics(keep_tokens=True)
    metrics = update(updater, rollout_of(), 1, recorder)
    rollout = rollout_of()
    rows = []
    for sequences, named in recorder.tokens:
        lengths = [int(rollout.lengths[sequence]) for sequence in sequences]
        rows += [part.double().numpy() for part in named["log_ratio"].split(lengths)]
    d, means = np.concatenate(rows), np.array([row.mean() for row in rows])
    assert d.std() > 1e-3
    expected = {
        "actor/realised_kl_k1": -d.mean(),
        "actor/realised_kl_k3": (np.exp(d) - 1 - d).mean(),
        "actor/log_ratio_sd": d.std(),
        "actor/sequence_log_ratio_sd": means.std(),
        "actor/clip_high_over_sd": 0.28 / (d if name == "grpo_dapo" else means).std(),
    }
    assert {key: metrics[key] for key in expected} == pytest.approx(expected, rel=1e-4, abs=1e-8)
