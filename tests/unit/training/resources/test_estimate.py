import json
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.planning.fit import Fit, fit
from tepo.planning.gpus import Machine, machines
from tepo.policy.model.shapes import KNOWN, Shape
from tepo.training.resources import estimate
from tepo.training.resources.estimate import decoding, measuring_time, operations_share, step_time
from tepo.training.resources.gpu_cards import GIB, H20, H100, H200
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import memory
from tepo.training.run import Run
from tests.support.commands import python

FACTOR = 1.5  # what a plan promises
BY_NAME = {machine.name: machine for machine in machines()}
SEVEN, SMALL = KNOWN["Qwen/Qwen2.5-7B"], Shape(576, 1536, 30, 9, 3, 64, 49_152, tied=True)  # SmolLM2-135M
OFFLOAD = ("engine.offload=true",)
PLAIN = ("sampler.tensor_parallel=1", "engine.micro_batch_tokens=16384", "engine.zero_stage=2")  # before one chose
RECORD = Path(__file__).parents[4] / "perf/results/gpu_nvidia_h200.json"


def paper(machine: str, *words: str) -> Fit:
    return fit(Run(compose(["scale=paper", *words])), BY_NAME[machine])


def measured(part: str) -> dict[str, float]:
    """Figures of an H200 by name."""
    return {one["name"]: one["ours"] for one in json.loads(RECORD.read_text())["parts"][part]["figures"]}


def close(planned: float, found: float) -> bool:
    return found / FACTOR < planned < found * FACTOR


def test_a_step_of_the_7b_on_a_node_is_in_the_range_that_was_worked_out_by_hand() -> None:
    """512 responses, 2,048 tokens on average and 8,192 at most, on 8 H100; of measuring five minutes."""
    found = paper("8 H100", *PLAIN)
    time, ranges = found.time, {"rollout": (60, 85), "logprobs": (5, 5.5), "updates": (38, 46), "reductions": (4, 5)}
    assert 121 <= time.total <= 150
    for phase, (low, high) in ranges.items():
        assert low <= getattr(time, phase) <= high, phase
    assert 5 <= time.rest <= 7
    assert close(measuring_time(found.run, BY_NAME["8 H100"].of(found.run)), 300)


@pytest.mark.parametrize(
    ("path", "checkpointing", "part", "name"),
    [
        ("Qwen/Qwen2.5-0.5B", False, "one_gpu", "qwen2.5-0.5b, 4096 tokens, adamw: "),
        ("Qwen/Qwen2.5-1.5B", True, "one_gpu", "qwen2.5-1.5b, 4096 tokens, adamw, checkpointing: "),
        ("Qwen/Qwen2.5-7B", True, "update", ""),
    ],
)
def test_updates_take_what_they_took_on_an_h200(path: str, checkpointing: bool, part: str, name: str) -> None:
    """MFU counts three passes; with recomputation there are four."""
    share = operations_share(KNOWN[path].hidden, H200) * 3 / (3 + checkpointing)
    assert close(share * H200.operations / 1e12, measured(part)[f"{name}updates, the ratio is the MFU"])


def test_a_whole_run_of_a_small_model_took_what_is_planned() -> None:
    """SmolLM2-135M in 512 responses of 25 tokens; 38 to 64 of 125 groups were mixed."""
    words = "sampler=torch engine=torch model.dtype=bfloat16 sampler.max_rows=512 sampler.margin=1"
    lengths = "train.max_new_tokens=64 train.max_prompt_tokens=160 model.gradient_checkpointing=false"
    run = Run(compose(["scale=single_gpu", *words.split(), *lengths.split(), "objective=grpo_dapo"]), sizes=SMALL)
    gpus, took = BY_NAME["1 H200"].of(run), measured("smollm")
    run, _ = fill(run, gpus)
    time = step_time(run, gpus, memory(run, gpus))
    for planned, phase in ((time.updates, "update_actor, of a step"), (time.rollout, "gen, of a step")):
        assert close(planned, took[f"GRPO/DAPO: {phase}"]), phase
    assert close(time.total, took["GRPO/DAPO: a step"])


def test_decoding_takes_what_it_took() -> None:
    """256 rows of Qwen2.5-0.5B on an H200, and of Llama-3.1-8B on an H100 (12.5k tokens a second:
    morphllm.com/vllm-benchmarks)."""
    small, large = (
        compose(["scale=paper", f"model={one}", *PLAIN]) for one in ("qwen2.5-0.5b", "deepseek-r1-distill-llama-8b")
    )
    for config, card, rate in ((small, H200, measured("sampler")["sampled, with graphs"]), (large, H100, 12_500)):
        spent = decoding(Run(config), card, 40 * GIB, 256, 256, 1000, 1000)
        assert close(256 * 1000 / spent, rate)


def test_the_step_that_verl_published_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2.5-Math-7B on 32 H20, 512 prompts by 12, without a filter and without CUDA graphs (22 ms of the host a
    token): 749 s, generation 321. The mean length is that with which the updates take their 286 s (verl,
    docs/advance/one_step_off.md; recipe/one_step_off_policy/dapo_7b_math_fsdp2_4_12.sh)."""
    words = "train.prompts_per_step=512 train.samples_per_prompt=12 train.mini_batch_prompts=32 train.epochs=1"
    more = "train.max_new_tokens=20480 sampler.tensor_parallel=2 sampler.margin=1 sampler.max_rows=512"
    run = Run(compose(["scale=paper", *words.split(), *more.split(), *PLAIN[1:], "model.gradient_checkpointing=true"]))
    gpus = Machine(H20, 4, 8, 1800 * GIB).of(run)
    needed = memory(run, gpus)
    monkeypatch.setattr(estimate, "KEPT_SHARE", 1.0)
    monkeypatch.setattr(estimate, "STEP", 0.022)
    for tokens in range(500, 4000, 50):
        monkeypatch.setattr(estimate, "RESPONSE_SHARE", tokens / 20480)
        time = step_time(run, gpus, needed)
        if time.updates + time.reductions >= 286:
            break
    assert close(time.rollout, 321)
    assert close(time.total, 749)


@pytest.mark.parametrize(
    ("shorter", "longer"),
    [
        ("", "sampler.margin=2"),
        ("", "train.checkpoint_every=1"),
        ("sampler.max_rows=256", "sampler.max_rows=32"),  # less runs side by side
        ("sampler.tensor_parallel=2", "sampler.tensor_parallel=1"),
        ("engine.zero_stage=1", "engine.zero_stage=2"),  # gradients are sent once an update
        ("", "engine.offload=true"),
    ],
)
def test_what_makes_a_step_longer(shorter: str, longer: str) -> None:
    assert paper("8 H100", *shorter.split()).time.total < paper("8 H100", *longer.split()).time.total


def test_a_better_machine_makes_a_step_shorter() -> None:
    two, new, usual, old = (paper(one).time.total for one in ("2 x 8 H100", "8 H200", "8 H100", "8 A100"))
    assert max(two, new) < usual < old


def test_passes_are_counted() -> None:
    """A reference policy is one more before the updates, recomputation one more in them; LoRA does without one."""
    plain, anchored = (paper("8 H100", f"objective={name}").time for name in ("tepo", "grpo"))
    assert anchored.logprobs == pytest.approx(2 * plain.logprobs)
    words = ("scale=single_gpu", "model=qwen2.5-1.5b")
    more = ("model.gradient_checkpointing=false", "model.gradient_checkpointing=true", "model.lora_rank=32")
    kept, again, lora = (
        fit(Run(compose([*words, *one])), BY_NAME["1 H200"]).time for one in ([more[0]], [more[1]], more[1:])
    )
    assert again.updates == pytest.approx(4 / 3 * kept.updates) == pytest.approx(4 / 3 * lora.updates)


def test_gradients_are_sent_after_every_micro_batch() -> None:
    """By hand: 3 micro-batches of 16,384 tokens in each of 8 updates, all reduced in float32 over 8 GPUs, and the
    weights gathered in bfloat16 after each update."""
    sent = 2 * 7 / 8 * SEVEN.parameters * (4 * 24 + 8)
    assert paper("8 H100", *PLAIN).time.reductions == pytest.approx(sent / (0.7 * 450e9))
    assert paper("1 H100", "engine.offload=true").time.reductions == 0


def test_an_offloaded_optimiser_takes_time() -> None:
    """By hand: 8 updates of 7.6 billion weights, shared by the GPUs; of each 28 bytes in main memory by AdamW, a fifth
    of that time to measure what moved, 6 to round it, and 6 across."""
    one, eight = (paper(name, "engine.offload=true").time for name in ("1 H100", "8 H100"))
    assert one.offload == pytest.approx(8 * SEVEN.parameters * (33.6 / 50e9 + 6 / 50e9 + 6 / 20e9))
    assert eight.offload == pytest.approx(one.offload / 8)


def test_what_is_drawn_beside_the_updates_hides_the_shorter_of_both() -> None:
    turn, beside = (paper("8 H100", "sampler=vllm_server", f"train.staleness={one}").time for one in (0, 1))
    hidden = min(turn.rollout, turn.updates + turn.reductions)
    assert beside.total - beside.checkpoints == pytest.approx(turn.total - turn.checkpoints - hidden)


def test_a_small_model_waits_for_the_host_of_vllm() -> None:
    """vLLM was measured to take so long for a token of so many rows on the host. A GPU reads 0.5B in less."""
    run, tokens = Run(compose(["scale=paper", "model=qwen2.5-0.5b", *PLAIN])), 1000
    for rows, milliseconds in ((64, 1.1), (256, 3.9), (512, 8.6)):
        spent = decoding(run, H200, 40 * GIB, rows, rows, tokens, tokens)
        assert 1 < 1000 * spent / tokens / milliseconds < 3


def test_a_checkpoint_takes_the_time_of_a_copy_where_main_memory_holds_one() -> None:
    """32B by hand: 14 bytes of a weight, 1 GB/s. Ten times as long as it takes to write it passes before the next. On
    512 GiB the training waits until it is there."""
    found = paper("8 H100", "model=qwen2.5-32b")
    gpus, size = found.machine.of(found.run), 14 * found.run.shape.parameters
    assert found.time.write == pytest.approx(size / 1e9)
    roomy, tight = (replace(gpus, host=found.memory.host + share * size) for share in (2.01, 1.99))
    every = 10 * found.time.write
    for machine, wait in ((roomy, size / 8 / 20e9), (tight, found.time.write)):
        time = step_time(found.run, machine, found.memory)
        assert time.checkpoints == pytest.approx((time.total - time.checkpoints) / every * wait)


def test_a_step_is_no_shorter_than_the_updates_of_the_longest_response() -> None:
    """Dealing sequences balances 128 of them over 32 GPUs; of 128 GPUs most have less to do than the one with the
    longest."""
    config = compose(["scale=paper", *PLAIN])
    updates = {}
    for nodes in (1, 4, 16):
        updates[nodes] = fit(Run(config), Machine(H100, nodes, 8, 1843 * GIB)).time.updates
    assert updates[4] == pytest.approx(updates[1] / 4, rel=0.15)
    assert updates[16] > 1.5 * updates[1] / 16


@pytest.mark.parametrize(
    ("name", "model", "checkpointing", "words"),
    [
        ("qwen2.5-0.5b, 4096 tokens, adamw", "qwen2.5-0.5b", "false", ()),
        ("qwen2.5-1.5b, 4096 tokens, optimiser in main memory, checkpointing", "qwen2.5-1.5b", "true", OFFLOAD),
    ],
)
def test_updates_hold_the_memory_that_they_held_on_an_h200(
    name: str, model: str, checkpointing: str, words: tuple[str, ...]
) -> None:
    """Of torch's allocator, without CUDA's own and fragments."""
    lengths = ("train.max_prompt_tokens=512", "train.max_new_tokens=3584", "engine.micro_batch_tokens=16384")
    chosen = ("sampler=torch", *PLAIN, "sampler.max_rows=256", f"model.gradient_checkpointing={checkpointing}", *words)
    found = memory(Run(compose(["scale=single_gpu", f"model={model}", *lengths, *chosen])))
    planned = found.updating - found.context - found.fragments
    assert planned / GIB == pytest.approx(measured("one_gpu")[f"{name}: peak memory, to the plan"], rel=0.06)


PLAN = """
import sys
from tepo.config.compose import compose
from tepo.planning.fit import fit
from tepo.planning.gpus import machines
from tepo.sampling.backends import sampler_backend, sampler_kinds
from tepo.training.engine.backends import engine_backend, engine_kinds
from tepo.training.run import Run

assert any(fit(Run(compose(["scale=paper"])), one).time.total for one in machines())
print(*map(sampler_backend, sampler_kinds()), *map(engine_backend, engine_kinds()))
assert not {"torch", "numpy", "transformers", "vllm", "deepspeed"} & set(sys.modules)
"""


def test_a_plan_imports_no_torch() -> None:
    """It reads every backend's declaration."""
    python("-c", PLAN)
