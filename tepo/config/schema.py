"""The typed schema that every composed configuration is checked against. One dataclass per Hydra group.

Sources of the paper-scale values: TEPO (arXiv 2604.12736) section 4.1 where printed; what it leaves out is marked in
`scale/paper.yaml`. The `objective` group is checked by `tepo.objectives` itself.
"""

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ModelConfig:
    """The policy. `path` is a folder, a hub id, or `package:NAME` for a base that ships with tepo."""

    name: str
    path: str
    revision: str | None = None
    dtype: str = "float32"  # float32 | bfloat16
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False
    # what goes around a request: auto (chat template where there is one, else the base template) | base | raw
    wrap: str = "auto"
    thinking: bool | None = None  # Qwen3's switch; None leaves it to the chat template


@dataclass
class DataConfig:
    """Training problems, and the benchmarks a finished run is measured on."""

    name: str
    base: str  # the model that `model=laptop` starts from
    kind: str = "procedural"  # procedural | problems
    tasks: dict[str, float] = field(default_factory=dict)  # procedural: task -> weight
    problems: str | None = None  # problems: a file, FILE.jsonl, or the name of a declared set (TEPO_DATA or hub)
    # raw (the statement alone) | boxed (with the instruction to box the answer)
    # | auto (raw for a shipped base, else boxed)
    prompt: str = "raw"
    exclude_contaminated: bool = False
    overlong_prompts: str = "drop"  # drop | truncate | error
    benchmarks: list[str] = field(default_factory=list)
    max_prompt_tokens: int | None = None  # what scale=laptop takes for train.max_prompt_tokens in place of its own
    max_new_tokens: int | None = None  # the same for train.max_new_tokens


@dataclass
class SamplerConfig:
    """Where responses come from."""

    kind: str = "torch"  # a module of tepo.sampling.samplers
    max_rows: int = 1024  # rows decoded at once
    gap_bound: float | None = (
        None  # sampler-trainer log-prob gap (mean absolute) that stops a run; None: 1e-3 in float32, 0.1 in bfloat16
    )
    memory_fraction: float = 0.4  # vLLM: share of the device (GPU), or GiB of cache on CPU
    servers: list[str] = field(default_factory=list)  # vllm_server: their URLs


@dataclass
class EngineConfig:
    """What trains the weights."""

    kind: str = "torch"  # a module of tepo.training.engines
    device: str = "auto"  # auto | cpu | cuda
    micro_batch_tokens: int = 16384
    zero_stage: int = 2
    offload: bool = False


@dataclass
class TrainConfig:
    """The RL loop, TEPO section 4.1."""

    steps: int
    prompts_per_step: int
    samples_per_prompt: int
    max_rounds: int  # rounds of sampling per step until enough mixed groups are there
    temperature: float
    max_prompt_tokens: int
    max_new_tokens: int
    # at most: a step's prompts are split evenly, 64 by 24 into 21 + 21 + 22; more than the prompts there are make one
    mini_batch_prompts: int
    epochs: int
    learning_rate: float
    warmup_steps: int = 0
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    kl_estimator: str | None = None  # takes the place of k3 in the objective (laptop: the exact full-vocabulary KL)
    checkpoint_every: int = 1
    token_dump_every: int = 0  # steps between dumps for the token view; 0 = last step only

    @property
    def mini_batches(self) -> int:
        """Of a full rollout: the fewest of at most `mini_batch_prompts` prompts.

        It is split into them evenly; a smaller one too.
        """
        return math.ceil(self.prompts_per_step / self.mini_batch_prompts)


@dataclass
class GraderConfig:
    """How answers are judged; see tepo.problems.grader. timeout: CPU seconds an answer may take in a worker."""

    timeout: float = 3.0
    workers: int = 1


@dataclass
class WandbConfig:
    """Mirror of metrics.jsonl; `mode=offline` needs no network."""

    mode: str = "disabled"  # disabled | offline | online
    project: str = "tepo"
    group: str | None = None


@dataclass
class RunConfig:
    """One training run."""

    seed: int
    scale: str
    objective: dict[str, Any]
    model: ModelConfig
    data: DataConfig
    sampler: SamplerConfig
    engine: EngineConfig
    train: TrainConfig
    grader: GraderConfig
    wandb: WandbConfig
    store: str = "runs"
