"""Seconds of a step and of measuring a run, in closed form: to a factor of 1.5, for choosing card, layout and budget.

Held against what an H200 measured and a step that verl published (tests/unit/training/resources/test_estimate.py).
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from tepo.config.run_config import chosen
from tepo.policy.model.shapes import KNOWN, number_bytes
from tepo.problems.benchmarks import load_benchmark
from tepo.sampling.backends import longest_sequence
from tepo.training.resources.disk import ROOM, interval, run_disk
from tepo.training.resources.gpu_cards import H100, H200, Card
from tepo.training.resources.memory import Gpus, Memory
from tepo.training.run import Run

FACTOR = 1.5  # that seconds are meant to be right to
# assumed of the problems and the model
RESPONSE_SHARE, SPREAD = 0.25, 0.8  # mean response, of train.max_new_tokens; deviation of its logarithm
KEPT_SHARE = 0.5  # of the groups, mixed and so kept
PROMPT = 200  # tokens, the mean of DAPO-Math-17k with its instruction
# decoding
BANDWIDTH = 0.77  # of the peak: Llama-3.1-8B, one request, vLLM 0.23 on an A100 (johnmusgrave.com)
# seconds of the host: vLLM's for a token of all rows and for each row of it, beside the GPU (1.1, 3.9 and 8.6 ms at 64,
# 256 and 512 rows were measured); of the embedded sampler between two tokens, while the GPU waits
STEP, ROW, TOKEN = 0.002, 15e-6, 0.0033
ALL_REDUCE = 10e-6  # seconds between GPUs of a node, two a layer (vllm-project/vllm#24111); bytes come on top
TAIL = 0.15  # of the rollout: one step in seven has to draw again, and waits for another longest response
LEFT, ROWS = 0.85, 512  # of a GPU, and rows, for an engine that shares it with nothing
# passes: share of the peak, all passes counted; perf/results/gpu_nvidia_h200.json has 0.28 at a width of 896, 0.38 at
# 1,536 and 0.50 at 3,584. Of several GPUs the others wait for the slowest.
NARROW, DOUBLED, WIDE, TOGETHER = 0.28, 0.11, 0.50, 0.85
LAYER = 0.005  # seconds of the host for a layer of a micro-batch, at least: SmolLM2-135M on an H200
NETWORK = 0.7  # of the peak of NVLink and of InfiniBand
HOST_BANDWIDTH, LINK, MOVED = 50e9, 20e9, 1.2  # bytes a second of main memory and to a GPU; with measuring what moved
DISK = 1e9  # bytes of a checkpoint that a node writes in a second: assumed of a file system that nodes share
# the rest: the sampler sleeps, wakes and takes the weights of a 7B; by a reading of the code
WAKE, SYNC, START = 3.0, 2.0, 120.0  # seconds a step; a 7B; a start of vLLM
ASSUMPTIONS = (
    f"seconds are a closed form, good to a factor of {FACTOR}; assumed: responses of "
    f"{RESPONSE_SHARE:.0%} of train.max_new_tokens on average, some as long as it allows, prompts of {PROMPT} tokens, "
    f"{KEPT_SHARE:.0%} of the groups mixed; decoding at {BANDWIDTH:.0%} of peak bandwidth, and beside it "
    f"{1000 * STEP:.0f} ms of the host a token and {1e6 * ROW:.0f} µs a row; passes at {NARROW:.0%} (narrow models) to "
    f"{WIDE:.0%} of peak operations, on several GPUs "
    f"{TOGETHER:.0%} of that; gradients are sent in float32, from ZeRO 2 on after every micro-batch; an offloaded "
    f"optimiser moves {HOST_BANDWIDTH / 1e9:.0f} GB/s; a node writes {DISK / 1e9:.0f} GB/s of a checkpoint, beside the "
    "training where main memory has room for a copy; grading takes no time"
)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step by phase. reductions: of gradients and weights between GPUs; offload: of the optimiser in
    main memory; rest: the sampler wakes and takes the weights, servers as files; checkpoints: the step's share of what
    the training waits for them, each of which takes `write` seconds until it is there. beside: the next rollout is
    drawn during the updates."""

    rollout: float
    logprobs: float
    updates: float
    reductions: float
    offload: float
    rest: float
    beside: bool = False
    checkpoints: float = 0.0
    write: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the step; beside the updates, the old log-probs wait for both."""
        phases = self.rollout, self.updates + self.reductions + self.offload
        return (max(phases) if self.beside else sum(phases)) + self.logprobs + self.rest + self.checkpoints

    @property
    def until_saved(self) -> float:
        """Seconds at most from a request to stop to the checkpoint: a step whose updates have begun is finished, with
        the rollout that is drawn beside it, and so is a checkpoint that is being written."""
        return self.total - (0.0 if self.beside else self.rollout) + 2 * self.write


def step_time(run: Run, gpus: Gpus, memory: Memory) -> StepTime:
    """Seconds of a step of a run that leaves nothing open; of a card whose figures are not known, as on an H100.
    Sampling servers are taken to be as many GPUs again."""
    config, shape = run.config, run.shape
    train, ranks, card = config.train, gpus.ranks, gpus.card or H100
    mean, size = RESPONSE_SHARE * train.max_new_tokens, number_bytes(config.model.dtype)
    engines = max(1, ranks // chosen(config.sampler.tensor_parallel))
    draws = config.sampler.margin * train.prompts_per_step * train.samples_per_prompt / KEPT_SHARE
    rollout = (1 + TAIL) * decoding(
        run, card, memory.cache, chosen(config.sampler.max_rows), draws / engines, mean, train.max_new_tokens
    )
    # every rank that has sequences of a group reads its prompt
    tokens = train.prompts_per_step * (train.samples_per_prompt * mean + min(train.samples_per_prompt, ranks) * PROMPT)
    squares = train.prompts_per_step * train.samples_per_prompt * (mean**2 * math.exp(SPREAD**2) + 2 * PROMPT * mean)
    speed = operations_share(shape.hidden, card) * (TOGETHER if ranks > 1 else 1.0) * card.operations * ranks
    forward = shape.forward_operations(tokens, squares) / speed
    count = train.epochs * train.mini_batches  # updates
    micro = count * math.ceil(tokens / train.mini_batches / ranks / chosen(config.engine.micro_batch_tokens))
    passes = 3 + chosen(config.model.gradient_checkpointing) - (config.model.lora_rank > 0)
    # a rank has its longest response to itself at least, though others have less to do
    limit = train.max_new_tokens
    longest = _longest(train.samples_per_prompt * train.prompts_per_step / train.mini_batches, mean, limit)
    alone = shape.forward_operations(longest, longest**2) / (speed / ranks)
    updates = max(train.epochs * passes * forward, count * passes * alone, micro * shape.layers * LAYER)

    trained = shape.adapter_parameters(config.model.lora_rank) or shape.parameters
    # bytes of a number, as two ranks counted them (tests/integration/test_deepspeed_engine.py): stage 1 reduces once an
    # update and stage 2 after every micro-batch, which is twice, and both gather the weights; stage 3 scatters after
    # every micro-batch, and gathers layers for each pass. Each GPU of a node has a share of the ring between nodes
    stage, scored = chosen(config.engine.zero_stage), micro / train.epochs  # micro-batches without gradients
    sent = 2.0 * 4 * (count if stage == 1 else micro) + size * count
    if stage == 3:
        sent = micro * (4 + size * (2 + chosen(config.model.gradient_checkpointing))) + scored * size
    sent *= (ranks - 1) / ranks * trained
    between = 1 / (card.network * gpus.node_ranks) if ranks > gpus.node_ranks else 0.0
    reductions, offload = sent * (1 / card.nvlink + between) / NETWORK, 0.0
    if config.engine.offload:  # masters and moments read and written, the gradient read; both cross
        offload = count * trained / ranks * ((28 * MOVED + 4 + size) / HOST_BANDWIDTH + (4 + size) / LINK)
    remote = run.sampler.remote
    rest = 0.0 if run.shares_weights else WAKE + SYNC * shape.parameters / KNOWN["Qwen/Qwen2.5-7B"].parameters
    if remote:  # files of all weights, written and read
        rest = 2 * size * shape.parameters / DISK
    beside = train.staleness > 0 and remote
    scoring = forward * (1 + memory.reference / (size * shape.parameters))  # by frozen ones too
    time = StepTime(rollout, scoring, updates, reductions, offload, rest, beside)
    wait, write = checkpoint_time(run, gpus, memory)
    gap = interval(write) if train.checkpoint_every is None else train.checkpoint_every * time.total
    share = min(time.total / gap, 1.0) * (wait + max(write - gap, 0.0))
    return replace(time, checkpoints=share, write=write)


def checkpoint_time(run: Run, gpus: Gpus, memory: Memory) -> tuple[float, float]:
    """Seconds that the training waits for a checkpoint, and that it takes until this is there. A copy is written beside
    the training, where the share of main memory that copies may take holds it."""
    size = run_disk(run).checkpoint * gpus.node_ranks / gpus.ranks
    copied = size <= ROOM * (gpus.host - memory.host)
    return (size / gpus.node_ranks / LINK if copied else size / DISK), size / DISK


def measuring_time(run: Run, gpus: Gpus) -> float:
    """Seconds of measuring a run on its benchmarks, which the GPUs of a node share; responses are as in training."""
    config = run.config
    benchmarks = [load_benchmark(name) for name in config.data.benchmarks]
    engines = max(1, gpus.node_ranks // chosen(config.sampler.tensor_parallel))
    count = sum(benchmark.count * benchmark.samples for benchmark in benchmarks) / engines
    limit = max((benchmark.max_new_tokens for benchmark in benchmarks), default=0)
    mean = min(RESPONSE_SHARE * config.train.max_new_tokens, limit)
    start = 0.0 if run.sampler.shares_weights else START
    return start + (decoding(run, gpus.card or H100, None, ROWS, count, mean, limit) if count else 0.0)


def decoding(run: Run, card: Card, cache: float | None, rows: int, count: float, mean: float, limit: int) -> float:
    """Seconds in which an engine draws so many responses: its longest response, and before that begins what does not
    run beside it; each step takes all weights and the cache of every row, and the host's time. cache: bytes of a GPU
    for it, None where it has the GPU for itself; rows: at most."""
    config, shape = run.config, run.shape
    tensor, size = chosen(config.sampler.tensor_parallel), number_bytes(config.model.dtype)
    weights, token = size * shape.parameters / tensor, size * shape.cut_cache_numbers(tensor)
    cache = max(LEFT * card.bytes - weights, 0.0) if cache is None else cache
    row_tokens = PROMPT + mean * math.exp(SPREAD**2) / 2  # tokens of a row, over its time
    longest = _longest(count, mean, limit)
    if run.sampler.full_rows:  # batches that run to their end
        rows = max(1, min(rows, int(cache / token / longest_sequence(config))))
        longest = _longest(min(count, rows), mean, limit)
        steps = math.ceil(count / rows) * longest
    else:
        fitting = max(1.0, min(rows, cache / (token * row_tokens)))
        steps = longest + max(count - fitting, 0.0) * mean / fitting
    active = shape.layers * shape.layer_parameters + shape.head_parameters
    reading = (steps * size * active / tensor + count * mean * row_tokens * token) / (BANDWIDTH * card.bandwidth)
    computing = 2 * active / (tensor * WIDE * card.operations)  # of a token
    crossing = 2 * (tensor - 1) / tensor * 4 * shape.layers * shape.hidden / (NETWORK * card.nvlink)
    tokens, prompts = count * mean, count * PROMPT / config.train.samples_per_prompt  # a prompt is read once
    decoded = max(reading, tokens * computing) + tokens * crossing
    decoded += steps * 2 * shape.layers * ALL_REDUCE if tensor > 1 else 0.0
    host = steps * STEP + tokens * ROW
    decoded = decoded + steps * TOKEN if run.sampler.full_rows else max(decoded, host)
    return decoded + prompts * (computing + crossing)


def _longest(count: float, mean: float, limit: int) -> float:
    """Tokens of the longest of so many lognormal responses."""
    largest = SPREAD * NormalDist().inv_cdf(1 - 1 / (count + 1))
    return min(limit, mean * math.exp(largest - SPREAD**2 / 2))


def operations_share(hidden: int, card: Card) -> float:
    """Share of a card's peak operations in passes of the trainer, by the model's width; what a narrow model takes
    beside its products goes by the bandwidth of the card."""
    share = min(max(NARROW + DOUBLED * math.log2(hidden / 896), 0.1), WIDE)
    beside = (1 / share - 1 / WIDE) / H200.operations * H200.bandwidth / card.bandwidth
    return 1 / (1 / WIDE + beside * card.operations)
