"""Configuration of a run: each Hydra group is a dataclass, each field states its meaning, choices and bounds.

Sources of the paper-scale values: TEPO (arXiv 2604.12736) section 4.1 where printed; what it leaves out is marked in
`scale/paper.yaml`. The `objective` is checked by `tepo.formula` itself.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from tepo.common.schema import REQUIRED, Exclusive, option

Wrap = Literal["raw", "auto", "base"]
TrackerName = Literal["wandb", "tensorboard", "trackio"]
POSITIVE = Exclusive(0)
GRADER = "grader"  # the reward that needs no file
T = TypeVar("T")


def chosen(value: T | None) -> T:
    """A setting that may be null, where the planner has chosen for it (`tepo.training.resources.layout.fill`)."""
    assert value is not None, "a setting is null that the planner should have chosen"
    return value


@dataclass
class ModelConfig:
    """The policy."""

    name: str = option(REQUIRED, "name of the model in lists and tables")
    path: str = option(REQUIRED, "folder, hub id, or `package:NAME` for a base that ships with tepo")
    revision: str | None = option(None, "commit of the model on the hub")
    teacher: str | None = option(None, "model that gives logp_teacher: named like path, or an option of model=")
    dtype: Literal["float32", "bfloat16"] = option("float32", "storage dtype of the weights")
    # null: where the memory of the card needs it
    gradient_checkpointing: bool | None = option(False, "recompute activations in the backward pass")
    trust_remote_code: bool = option(False, "let code that comes with the model run")
    lora_rank: int = option(0, "rank of adapters on a frozen model (peft); 0: all weights train", low=0)
    lora_alpha: float = option(32.0, "scale of the adapters, divided by their rank", low=POSITIVE)
    wrap: Wrap = option("auto", "text around a request; auto: the chat template where there is one, else base")
    thinking: bool | None = option(None, "Qwen3's switch for thinking; null leaves it to the chat template")

    @property
    def loaded(self) -> tuple["ModelConfig", ...]:
        """The models that a run loads: the policy, and the teacher where there is one."""
        return (self, replace(self, path=self.teacher, revision=None, teacher=None)) if self.teacher else (self,)


@dataclass(frozen=True)
class NamedReward:
    """One reward of a response, a number in [0, 1]."""

    file: str = option(REQUIRED, "Python file that defines it, or `grader` for the verdict of the grader")
    function: str = option("reward", "name of the function in it, of a problem and a response")
    weight: float = option(1.0, "weight in the mean that is trained on", low=POSITIVE)
    text: str = option("", "what is in the file")

    @property
    def own(self) -> bool:
        """False for the verdict of the grader."""
        return self.file != GRADER


@dataclass
class DataConfig:
    """Training problems, and the benchmarks a finished run is measured on."""

    name: str = option(REQUIRED, "name of the problems in lists and tables")
    base: str = option(REQUIRED, "name of the model that `model=laptop` starts from")
    kind: Literal["procedural", "problems"] = option("procedural", "where problems come from: generated, or read")
    tasks: dict[str, float] = option({}, "weight of each generated task (kind=procedural)")
    problems: str | None = option(None, "file, set of the hub, task of reasoning-gym, or name of a declared set")
    fields: dict[str, str] = option(
        {}, "column of problem, answer, choices, id, family, if its name doesn't say so; of system; encoding of a table"
    )
    columns: list[str] = option([], "columns of the data that rewards of your own are given, as they are")
    # a group may say auto: raw for a shipped base, else boxed; a file's text stands here
    prompt: str = option("raw", "request: raw, the problem; boxed, with the wish for a box; your text with {problem}")
    reward: dict[str, NamedReward] = option({}, "rewards by name, in place of the grader's verdict")
    flip_rewards: float = option(0.0, "share of responses that are trained on 1 - reward", low=0, high=0.5)
    exclude_contaminated: bool = option(False, "leave out problems that a benchmark contains")
    held_out: int = option(0, "number of problems kept from training, for train.validate_every", low=0)
    overlong_prompts: Literal["drop", "truncate", "error"] = option("drop", "what happens to prompts beyond the limit")
    benchmarks: list[str] = option([], "names of the benchmarks that a finished run is measured on")
    max_prompt_tokens: int | None = option(None, "prompt limit at scale=laptop; null: the scale's", low=1)
    max_new_tokens: int | None = option(None, "response limit at scale=laptop; null: the scale's", low=1)


@dataclass
class SamplerConfig:
    """Source of the responses."""

    kind: str = option("torch", "name of the sampler, a module of tepo.sampling.backends")
    # null: as many as the planner finds room for
    max_rows: int | None = option(1024, "largest number of responses decoded at once", low=1)
    # null: 1e-3 in float32, 0.1 in bfloat16
    gap_bound: float | None = option(None, "mean absolute log-prob gap to the trainer that stops a run", low=POSITIVE)
    # null: what the planner says the trainer leaves; on a CPU 0.4
    memory_fraction: float | None = option(None, "vLLM's share of the GPU, or GiB of its cache on a CPU", low=POSITIVE)
    # null: the planner's choice; the last bits of log-probs differ with it, as they do with the number of ranks
    tensor_parallel: Literal[1, 2, 4, 8] | None = option(1, "number of neighbouring ranks that share a vLLM engine")
    servers: list[str] = option([], "URLs of the servers (kind=vllm_server)")
    margin: float = option(1.2, "prompts in flight, in multiples of those expected to suffice", low=1)


@dataclass
class EngineConfig:
    """Training of the weights."""

    kind: str = option("torch", "name of the engine, a module of tepo.training.engine.backends")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "device of the training")
    # null, of both: the planner's choice
    micro_batch_tokens: int | None = option(16384, "largest number of tokens of one forward pass", low=1)
    zero_stage: int | None = option(2, "ZeRO stage of DeepSpeed: the state that GPUs share out", low=1, high=3)
    optimizer: Literal["adamw", "adamw_8bit"] = option(
        "adamw", "optimizer; adamw_8bit keeps its moments in 8 bits (engine=torch only)"
    )
    # null: where nothing fits without; as the rest of the layout no part of a run's id
    offload: bool | None = option(False, "keep the optimizer's state in CPU memory")
    kernels: list[Literal["flash4", "layers"]] = option(
        [], "attention by flash-attn-4; norms, rotation and gates of the layers compiled"
    )


@dataclass
class TrainConfig:
    """The RL loop, TEPO section 4.1."""

    steps: int = option(REQUIRED, "number of rollouts, each with its updates", low=1, high=10**7)
    prompts_per_step: int = option(
        REQUIRED, "groups with right and wrong responses in a full rollout", low=1, high=10**6
    )
    # a group of one has no contrast: for objectives alone that need none
    samples_per_prompt: int = option(REQUIRED, "number of responses of a group", low=1, high=10**6)
    max_rounds: int = option(REQUIRED, "most prompts of a step, in multiples of prompts_per_step", low=1, high=1000)
    temperature: float = option(REQUIRED, "sampling temperature; greedy groups are all alike", low=POSITIVE)
    max_prompt_tokens: int = option(REQUIRED, "length limit of a prompt", low=1, high=10**7)
    max_new_tokens: int = option(REQUIRED, "length limit of a response", low=1, high=10**7)
    # a step's prompts are split evenly, 64 by 24 into 21 + 21 + 22; more than the prompts there are make one
    mini_batch_prompts: int = option(REQUIRED, "largest number of prompts of a mini-batch, one update", low=1)
    epochs: int = option(REQUIRED, "number of passes over a rollout", low=1, high=10**4)
    learning_rate: float = option(REQUIRED, "learning rate of AdamW after the warm-up", low=POSITIVE)
    warmup_steps: int = option(0, "number of steps over which the learning rate rises", low=0)
    weight_decay: float = option(0.0, "weight decay of AdamW", low=0)
    adam_beta2: float = option(0.999, "decay rate of AdamW's second moment", low=0, high=Exclusive(1))
    grad_clip: float = option(1.0, "largest norm of the gradient; inf: no clipping", low=POSITIVE, high=math.inf)
    exact_kl: bool = option(False, "take the exact KL over the vocabulary for an objective's k3")
    # a departure from both papers, to study how objectives tolerate stale data
    staleness: int = option(0, "number of steps between the policy that samples and the one trained on it", low=0)
    collapse_window: int = option(0, "steps in a row below step 1's reward that end a run; 0: never", low=0)
    # null: by the clock, one ten minutes after the last
    checkpoint_every: int | None = option(1, "number of steps between checkpoints", low=1)
    validate_every: int = option(0, "number of steps between measurements on validation problems; 0: never", low=0)
    validation_problems: int = option(
        50, "problems of each generated benchmark for train.validate_every", low=1, high=10**6
    )
    keep_best: bool = option(False, "ending with the weights whose validation was best, which validate_every measures")
    token_dump_every: int = option(0, "steps between dumps for the token view; 0: the first and last alone", low=0)

    @property
    def mini_batches(self) -> int:
        """Number of mini-batches of a full rollout: the fewest of at most `mini_batch_prompts` prompts. It is split
        into them evenly; a smaller one too."""
        return math.ceil(self.prompts_per_step / self.mini_batch_prompts)


@dataclass
class GraderConfig:
    """Judging of answers; see tepo.problems.grader."""

    timeout: float = option(3.0, "CPU seconds an answer may take in a worker", low=POSITIVE)
    workers: int = option(1, "number of worker processes; 0: one per usable core, at most 8", low=0)
    memory_mb: int = option(1024, "memory of a worker, MiB", low=1)
    recycle: int = option(2000, "number of answers after which a worker is replaced", low=1)
    max_chars: int = option(2000, "longer answers are wrong without being read", low=1)
    max_depth: int = option(40, "answers with deeper brackets are wrong without being read", low=1)
    fallbacks: list[str] = option([], "what may be the answer without a box: phrase, formula, bare")
    relative_tolerance: float = option(0.0, "relative tolerance between numbers", low=0)
    absolute_tolerance: float = option(0.0, "absolute tolerance between numbers", low=0)


@dataclass
class TrackingConfig:
    """Places beside the run's folder that show its metrics."""

    to: list[TrackerName] = option([], "names of the trackers: wandb, tensorboard, trackio")
    project: str = option("tepo", "project of the run there")
    group: str | None = option(None, "group of the run there")
    name: str | None = option(None, "name of the run there, before its id; null: OBJECTIVE-SEED")
    offline: bool = option(False, "nothing is sent: wandb keeps a folder for `wandb sync`, trackio its local database")


@dataclass
class RunConfig:
    """One training run."""

    seed: int = option(REQUIRED, "seed of every random draw", low=0, high=Exclusive(2**63))
    scale: str = option(REQUIRED, "scale of the run: laptop, smollm2, small_lm, single_gpu or paper")
    objective: dict[str, Any] = option(REQUIRED, "formula of the loss, as tepo.formula reads it")
    model: ModelConfig = option(REQUIRED, "policy")
    data: DataConfig = option(REQUIRED, "training problems and benchmarks")
    sampler: SamplerConfig = option(REQUIRED, "where responses come from")
    engine: EngineConfig = option(REQUIRED, "how the weights are trained")
    train: TrainConfig = option(REQUIRED, "RL loop")
    grader: GraderConfig = option(REQUIRED, "how answers are judged")
    tracking: TrackingConfig = option(REQUIRED, "where metrics are shown beside the run's folder")
    store: str = option("runs", "folder of all runs")
