import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tepo.common.provenance import sessions
from tepo.policy.model.load_policy import load_policy
from tepo.store.run_folder import RunFolder
from tests.support.commands import program, ranks

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.deepspeed, pytest.mark.disaster]

VLLM = ["sampler=vllm", "sampler.memory_fraction=0.06"]
ONE = {
    "embedded torch": [],
    "vllm torch": VLLM,
    "embedded deepspeed": ["engine=deepspeed"],
}  # DeepSpeed last: it makes a rank of the process
TWO = {"vllm deepspeed": [*VLLM, "engine=deepspeed", "engine.zero_stage=3"]}
THREE = {"three ranks": ["engine=deepspeed", "engine.zero_stage=2"]}  # which share no mini-batch of 8 prompts evenly
COMPARED = (
    "actor/pg_loss",
    "actor/kl_loss",
    "actor/grad_norm",
    "actor/entropy",
    "actor/ratio_mean",
    "critic/rewards/kept_mean",
    "response_length/mean",
)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("agreement")
    program("tests.integration.agreement_run", folder, json.dumps(ONE)).end()
    for jobs, count in ((TWO, 2), (THREE, 3)):
        for rank in ranks("tests.integration.agreement_run", folder, json.dumps(jobs), count=count):
            rank.end()
    return folder


def run_of(out: Path, name: str) -> RunFolder:
    (manifest,) = (out / name).glob("*/manifest.json")
    return RunFolder(manifest.parent)


def outcome(out: Path, name: str) -> tuple[list[dict], dict[str, torch.Tensor]]:
    run = run_of(out, name)
    return run.metrics(), load_file(run.checkpoint(run.checkpoints()[-1]) / "model.safetensors")


def flat(weights: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([weights[name].flatten() for name in sorted(weights)])


@pytest.mark.parametrize("name", [*ONE, *TWO, *THREE])
def test_provenance_says_what_ran_in_vllm(out, name):
    (session,) = sessions(run_of(out, name).path)
    parts = {"runner": "V1", "scheduler": "Scheduler", "attention": "CPU_ATTN"}  # none of which a GPU has
    assert session.get("sampler") == (parts if "vllm" in name else None)


@pytest.mark.parametrize("name", [*ONE, *TWO, *THREE])
def test_losses_and_weights_agree(out, name):
    (expected, reference), (rows, weights) = outcome(out, "embedded torch"), outcome(out, name)
    assert len(rows) == len(expected) == 3
    for one, other in zip(rows, expected, strict=True):
        for key in COMPARED:
            assert one[key] == pytest.approx(other[key], rel=TOLERANCE), key
        assert one["training/rollout_logprobs_diff_max"] < TOLERANCE  # vLLM follows every sync
    assert weights.keys() == reference.keys()
    apart = flat(weights) - flat(reference)
    assert apart.norm() < TOLERANCE * flat(reference).norm()
    start = load_policy("package:laptop").model.state_dict()
    moved = flat(reference) - flat({key: start[key] for key in reference})
    assert moved.norm() > 0.01 * flat(reference).norm()  # there was something to disagree about
    assert apart.norm() < 10 * TOLERANCE * moved.norm()
