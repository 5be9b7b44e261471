"""verl's published steps beside the simulation of its schedule, before it may compare ours with it.

Qwen2.5-Math-7B, DAPO, colocated FSDP2 and vLLM on 32 H20 (verl, docs/advance/one_step_off.md): step 749 s, generation
321, old log-probs 88, update 286. From its recipe/one_step_off_policy/dapo_7b_math_fsdp2_4_12.sh: 512 prompts by 12
responses, mini-batches of 32, tensor parallel 2, sequences cut over 4 GPUs, memory 0.8; 20,480 tokens as in the table.
Its default of that time is `enforce_eager: True` (trainer/config/rollout/rollout.yaml).

The mean length was not published: it is the one with which the update takes its 286 s. Judged are the other phases.
verl's driver moves padded tensors: what that costs a position is taken from the log-prob times of another table
(recipe/fully_async_policy: 512 prompts by 16, 28k tokens, 32, 64 and 128 H20), none of which is judged.
"""

from dataclasses import dataclass, replace

from tepo.config.compose import compose
from tepo.planning.simulator import updates
from tepo.planning.simulator.cards import EAGER_SECONDS, Decoding, Training
from tepo.planning.simulator.schedules import Setup, by_generation_batches
from tepo.planning.simulator.updates import Trained
from tepo.planning.simulator.workload import PROMPT, Lognormal
from tepo.policy.model.shapes import KNOWN
from tepo.training.resources.gpu_cards import H20

SHAPE = KNOWN["Qwen/Qwen2.5-7B"]  # Math-7B has the same
WITHIN = 0.25
PROMPTS, LONGEST_PROMPT, CUT, MINI_BATCHES = 512, 2048, 4, 16


@dataclass(frozen=True)
class Published:
    """A row: how the run was set up, and its seconds."""

    gpus: int
    responses: int
    limit: int
    logprobs: float
    updates: float
    generation: float = 0.0
    step: float = 0.0


JUDGED = Published(32, 12, 20_480, 88.0, 286.0, generation=321.0, step=749.0)
OTHERS = (
    Published(32, 16, 28_672, 107.71, 269.80, generation=357.41),
    Published(64, 16, 28_672, 70.26, 133.41, generation=150.72),
    Published(128, 16, 28_672, 53.92, 113.81, generation=177.85),
)


def trained(row: Published, mean: float) -> Trained:
    """Log-probs and updates with responses of this mean length, without the driver's time."""
    training = Training(replace(H20, operations=CUT * H20.operations), SHAPE, row.gpus // CUT)
    workload = Lognormal(mean, row.limit)
    lengths = [workload.group(number, row.responses).lengths for number in range(PROMPTS)]
    return updates.verl(training, lengths, MINI_BATCHES, 1, PROMPT)


def mean_length(row: Published) -> float:
    """Mean length with which the updates take the published time."""
    low, high = 200.0, 6000.0
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if trained(row, middle).updates < row.updates else (low, middle)
    return low


def _positions(row: Published) -> int:
    return PROMPTS * row.responses * (LONGEST_PROMPT + row.limit)


@dataclass(frozen=True)
class Check:
    """A phase: what was published and what comes out."""

    phase: str
    published: float
    simulated: float
    judged: bool = True

    @property
    def holds(self) -> bool:
        return abs(self.simulated / self.published - 1) <= WITHIN


def generated(row: Published, mean: float, tensor: int, floor: float) -> float:
    """Seconds of one generation batch without a filter."""
    overrides = [f"train.prompts_per_step={PROMPTS}", f"train.samples_per_prompt={row.responses}"]
    config = compose(["scale=paper", *overrides, f"train.max_new_tokens={row.limit}"])
    decoding = Decoding(H20, SHAPE, 0.8, 1024, tensor=tensor, floor=floor)
    return by_generation_batches(Setup(config, decoding, row.gpus // tensor, Lognormal(mean, row.limit)), 0, 0).seconds


def check(row: Published = JUDGED) -> tuple[list[Check], float]:
    """The phases of the published step, and the mean length of its responses."""
    mean = mean_length(row)
    done, generation = trained(row, mean), generated(row, mean, tensor=2, floor=EAGER_SECONDS)
    # what a padded position costs the driver, on average over the other table, whose length is that of its first row
    other = mean_length(OTHERS[0])
    left = [(one.logprobs - trained(one, other).logprobs) / _positions(one) for one in OTHERS]
    logprobs = done.logprobs + sum(left) / len(left) * _positions(row)
    return [
        Check("update (gives the length)", row.updates, done.updates, judged=False),
        Check("generation", row.generation, generation),
        Check("old log-probs", row.logprobs, logprobs),
        Check("step", row.step, generation + logprobs + done.updates),
    ], mean


def others() -> list[Check]:
    """The other table, from the length of its first row: with graphs, the default of that time, and without."""
    mean, checks = mean_length(OTHERS[0]), []
    for row in OTHERS:
        name = f"{row.gpus} H20, {mean:.0f} tokens"
        checks.append(Check(f"{name}: update", row.updates, trained(row, mean).updates, judged=False))
        for how, floor in (("graphs", 0.0), ("eager", EAGER_SECONDS)):
            seconds = generated(row, mean, tensor=4, floor=floor)
            checks.append(Check(f"{name}: generation, {how}", row.generation, seconds, judged=False))
    graphs = generated(JUDGED, mean_length(JUDGED), tensor=2, floor=0.0)
    return [*checks, Check("the step above, graphs: generation", JUDGED.generation, graphs, judged=False)]
