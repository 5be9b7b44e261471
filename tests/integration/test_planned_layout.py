"""The layout that is planned for 7B on eight GPUs, at half its size on ranks of a CPU: four ranks, two vLLM engines of
two ranks each, bfloat16. ZeRO 1 is the planned stage; 3 with the optimiser in main memory is 32B's."""

import json
import socket
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file

from tepo.config.compose import compose
from tepo.store.run_folder import RunFolder
from tests.integration.planned_layout_run import LOST, digest
from tests.support.commands import ranks
from tests.support.models import engine_model, save

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.deepspeed, pytest.mark.disaster]

RANKS, STEPS = 4, 2
# random weights are never right: by flipped rewards groups are mixed
RUN = ("data.flip_rewards=0.5", "train.prompts_per_step=4", "train.mini_batch_prompts=4", "train.samples_per_prompt=4")
RUN += (f"train.steps={STEPS}", "train.max_rounds=4", "train.max_new_tokens=24", "train.epochs=1")
RUN += ("train.learning_rate=0.01", "train.checkpoint_every=9", "model.dtype=bfloat16", "engine=deepspeed", "seed=1")
RUN += ("sampler=vllm", "sampler.tensor_parallel=2", "sampler.memory_fraction=0.03", "sampler.max_rows=64")
LAYOUTS = {"zero 1": ("engine.zero_stage=1",), "zero 3": ("engine.zero_stage=3", "engine.offload=true")}


class Launch(NamedTuple):
    """What came of one launch of four ranks: its runs, the looks of each rank at each, the process of the lost rank,
    and what the others said."""

    runs: dict[str, RunFolder]
    looks: dict[str, list[list[dict[str, Any]]]]
    lost: int
    errors: list[str]


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """All in the same processes: most of the time goes into their imports."""
    folder = tmp_path_factory.mktemp("planned")
    path = save(engine_model(0, tied=False), folder / "model")
    words = {
        name: [*RUN, f"model.path={path}", f"store={folder / name}", *layout]
        for name, layout in (LAYOUTS | {LOST: LAYOUTS["zero 1"]}).items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", str(RANKS))  # as torchrun sets it
        *others, lost = ranks("tests.integration.planned_layout_run", folder, json.dumps(words), count=RANKS)
        errors = [rank.end(code=1).stderr for rank in others]
        lost.end(code=-9)
    looks = {
        name: [json.loads((folder / f"{name}_{rank}.json").read_text()) for rank in range(RANKS)] for name in LAYOUTS
    }
    return Launch({name: RunFolder.of(compose(each)) for name, each in words.items()}, looks, lost.pid, errors)


@pytest.mark.parametrize("name", LAYOUTS)
def test_after_each_step_the_engines_have_the_trainers_weights_to_the_bit(launch: Launch, name: str) -> None:
    for looks in launch.looks[name]:
        assert [look["differing"] for look in looks] == [[]] * (STEPS + 1)
        first, *others = [look["moved"] for look in looks]
        assert "lm_head.weight" in first
        assert others == [first] * STEPS  # every tensor
    weights = [[look["weights"] for look in looks] for looks in launch.looks[name]]
    assert weights == [weights[0]] * RANKS
    run = launch.runs[name]
    assert run.finished()
    assert weights[0][-1] == digest(load_file(run.checkpoint(STEPS) / "model.safetensors"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_both_engines_sample_and_the_trainer_scores_alike(launch: Launch, name: str) -> None:
    asked = [[look["asked"] for look in looks] for looks in launch.looks[name]]
    assert (asked[0], asked[2]) == (asked[1], asked[3])  # neighbours
    # the first look is after the alarm's test responses, which are drawn again at each
    rollouts = [last - first * (STEPS + 1) for first, *_, last in asked]
    assert min(rollouts) > 0
    rows = launch.runs[name].metrics()
    assert rollouts[0] + rollouts[2] >= rows[-1]["training/responses"]
    assert all(row["training/rollout_logprobs_diff_mean"] < 0.05 for row in rows)


def test_the_first_gradient_is_the_same_in_both_layouts(launch: Launch) -> None:
    """But for a token that rounding made another."""
    one, other = (launch.runs[name].metrics()[0]["actor/grad_norm"] for name in LAYOUTS)
    assert one == pytest.approx(other, rel=0.2)


def test_a_lost_rank_is_named_by_its_neighbour_and_by_the_other_engine(launch: Launch) -> None:
    """Its neighbour waits for it inside of vLLM: in a collective of gloo, or, where the CPU has AVX-512, in one over
    shared memory, which no broken connection ends."""
    for rank, errors in enumerate(launch.errors):
        assert f"rank {rank} of {RANKS}: " in errors
        assert f"rank 3 (process {launch.lost} on {socket.gethostname()}) is missing since 20" in errors
    assert launch.runs[LOST].manifest()["status"] == "failed"
    assert f"rank 3 (process {launch.lost}" in launch.runs[LOST].manifest()["error"]
