"""Configuration of a run: each Hydra group is a dataclass, each field states its meaning, choices and bounds.

Sources of the paper-scale values: TEPO (arXiv 2604.12736) section 4.1 where printed; what it leaves out is marked in
`scale/paper.yaml`. The `objective` group is checked by `tepo.objectives` itself.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tepo.common.kl_estimators import KlEstimator
from tepo.common.schema import REQUIRED, Exclusive, option

Prompt = Literal["raw", "boxed"]
Wrap = Literal["raw", "auto", "base"]
POSITIVE = Exclusive(0)
T = TypeVar("T")


def chosen(value: T | None) -> T:
    """A setting that may be null, where the planner has chosen for it (`tepo.training.resources.memory.choose`)."""
    assert value is not None, "a setting is null that the planner should have chosen"
    return value


@dataclass
class ModelConfig:
    """The policy."""

    name: str = option(REQUIRED, "what lists and tables call it")
    path: str = option(REQUIRED, "a folder, a hub id, or `package:NAME` for a base that ships with tepo")
    revision: str | None = option(None, "commit of the hub")
    dtype: Literal["float32", "bfloat16"] = option("float32", "of the weights")
    # null: where the memory of the card needs it
    gradient_checkpointing: bool | None = option(False, "compute activations twice to hold fewer")
    trust_remote_code: bool = option(False, "run code that comes with the model")
    lora_rank: int = option(0, "train adapters of this rank on a frozen model (peft); 0: train all weights", low=0)
    lora_alpha: float = option(32.0, "adapters are scaled by this over their rank", low=POSITIVE)
    wrap: Wrap = option("auto", "what goes around a request; auto: a chat template where there is one, else base")
    thinking: bool | None = option(None, "Qwen3's switch; null leaves it to the chat template")


@dataclass
class DataConfig:
    """Training problems, and the benchmarks a finished run is measured on."""

    name: str = option(REQUIRED, "what lists and tables call them")
    base: str = option(REQUIRED, "the model that `model=laptop` starts from")
    kind: Literal["procedural", "problems"] = option("procedural", "problems are generated, or read")
    tasks: dict[str, float] = option({}, "procedural: task and its weight")
    problems: str | None = option(None, "a file, FILE.jsonl, or the name of a declared set (TEPO_DATA or hub)")
    # a group may say auto: raw for a shipped base, else boxed
    prompt: Prompt = option("raw", "the statement alone, or boxed: with the instruction to box the answer")
    exclude_contaminated: bool = option(False, "leave out problems that a benchmark holds")
    held_out: int = option(0, "problems of a set kept from training, for train.validate_every", low=0)
    overlong_prompts: Literal["drop", "truncate", "error"] = option("drop", "what becomes of prompts beyond the limit")
    benchmarks: list[str] = option([], "what a finished run is measured on")
    max_prompt_tokens: int | None = option(None, "what scale=laptop takes in place of its own", low=1)
    max_new_tokens: int | None = option(None, "what scale=laptop takes in place of its own", low=1)


@dataclass
class SamplerConfig:
    """Source of the responses."""

    kind: str = option("torch", "a module of tepo.sampling.backends")
    # null: as many as the planner finds room for
    max_rows: int | None = option(1024, "rows decoded at once", low=1)
    # null: 1e-3 in float32, 0.1 in bfloat16
    gap_bound: float | None = option(None, "mean absolute log-prob gap to the trainer that stops a run", low=POSITIVE)
    # null: what the planner says the trainer leaves; on a CPU 0.4
    memory_fraction: float | None = option(None, "vLLM: share of the GPU, or GiB of cache on a CPU", low=POSITIVE)
    # the last bits of its log-probs differ with it, as they do with the number of ranks
    tensor_parallel: Literal[1, 2, 4, 8] = option(1, "vllm: neighbouring ranks of a node that hold one engine together")
    servers: list[str] = option([], "vllm_server: their URLs")
    margin: float = option(1.2, "prompts under way, over those that should hold the missing groups", low=1)


@dataclass
class EngineConfig:
    """Training of the weights."""

    kind: str = option("torch", "a module of tepo.training.engine.backends")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "where it trains")
    micro_batch_tokens: int = option(16384, "tokens of one forward pass", low=1)
    zero_stage: int = option(2, "what DeepSpeed shards between GPUs", low=0, high=3)
    optimizer: Literal["adamw", "adamw_8bit"] = option("adamw", "8bit: its moments in 8 bits; engine=torch")
    offload: bool = option(False, "keep the optimiser in the memory of the CPU")


@dataclass
class TrainConfig:
    """The RL loop, TEPO section 4.1."""

    steps: int = option(REQUIRED, "rollouts, each with its updates", low=1)
    prompts_per_step: int = option(REQUIRED, "mixed groups of a full rollout", low=1)
    samples_per_prompt: int = option(REQUIRED, "responses of a group; a group of one has no advantage", low=2)
    max_rounds: int = option(REQUIRED, "a step draws at most so many times prompts_per_step prompts", low=1)
    temperature: float = option(REQUIRED, "of the rollout; greedy groups are all alike", low=POSITIVE)
    max_prompt_tokens: int = option(REQUIRED, "limit of a prompt", low=1)
    max_new_tokens: int = option(REQUIRED, "limit of a response", low=1)
    # a step's prompts are split evenly, 64 by 24 into 21 + 21 + 22; more than the prompts there are make one
    mini_batch_prompts: int = option(REQUIRED, "at most so many prompts before each update", low=1)
    epochs: int = option(REQUIRED, "passes over a rollout", low=1)
    learning_rate: float = option(REQUIRED, "of AdamW", low=POSITIVE)
    warmup_steps: int = option(0, "steps over which the learning rate rises", low=0)
    weight_decay: float = option(0.0, "of AdamW", low=0)
    adam_beta2: float = option(0.999, "of AdamW: the decay of its second moment", low=0, high=Exclusive(1))
    grad_clip: float = option(1.0, "largest norm of the gradient; inf: no clip", low=POSITIVE, high=math.inf)
    kl_estimator: KlEstimator | None = option(None, "takes the place of k3 in the objective")
    # a departure from both papers, to study how objectives bear stale data
    staleness: int = option(0, "steps between the policy that samples and the one that trains on it", low=0)
    collapse_window: int = option(0, "a run ends after so many steps below the reward of its first; 0: never", low=0)
    # null: about ten minutes, by the planned seconds of a step
    checkpoint_every: int | None = option(1, "steps between checkpoints", low=1)
    validate_every: int = option(0, "steps between measurements on validation problems; 0: never", low=0)
    validation_problems: int = option(50, "of each generated benchmark, for train.validate_every", low=1)
    token_dump_every: int = option(0, "steps between dumps for the token view; 0 = last step only", low=0)

    @property
    def mini_batches(self) -> int:
        """Number of mini-batches of a full rollout: the fewest of at most `mini_batch_prompts` prompts.

        It is split into them evenly; a smaller one too.
        """
        return math.ceil(self.prompts_per_step / self.mini_batch_prompts)


@dataclass
class GraderConfig:
    """Judging of answers; see tepo.problems.grader."""

    timeout: float = option(3.0, "CPU seconds an answer may take in a worker", low=POSITIVE)
    workers: int = option(1, "processes; 0: one per usable core, at most 8", low=0)


@dataclass
class WandbConfig:
    """Mirror of metrics.jsonl."""

    mode: Literal["disabled", "offline", "online"] = option("disabled", "offline needs no network")
    project: str = option("tepo", "where wandb puts the run")
    group: str | None = option(None, "wandb's group of runs")


@dataclass
class RunConfig:
    """One training run."""

    seed: int = option(REQUIRED, "of every draw", low=0, high=Exclusive(2**63))
    scale: str = option(REQUIRED, "laptop or paper")
    objective: dict[str, Any] = option(REQUIRED, "the axes of the loss, as tepo.objectives reads them")
    model: ModelConfig = option(REQUIRED, "the policy")
    data: DataConfig = option(REQUIRED, "training problems, and the benchmarks of a finished run")
    sampler: SamplerConfig = option(REQUIRED, "where responses come from")
    engine: EngineConfig = option(REQUIRED, "what trains the weights")
    train: TrainConfig = option(REQUIRED, "the RL loop")
    grader: GraderConfig = option(REQUIRED, "how answers are judged")
    wandb: WandbConfig = option(REQUIRED, "the mirror of metrics.jsonl")
    store: str = option("runs", "the folder of all runs")
