"""Seconds of decoding and of passes on a card: the only constants of the simulation, each with its source.

None is fitted to a row that the simulation is judged by.
"""

from dataclasses import dataclass

from tepo.policy.model.shapes import Shape
from tepo.training.resources.gpu_cards import H100, Card
from tepo.training.resources.memory import GIB

# Llama-3.1-8B, one request, vLLM 0.23 on an A100 40GB: 75 tokens/s, 77% of what its bandwidth allows
# (johnmusgrave.com/p/vllm-throughput-latency-sweep-on). At 256 rows of 1k tokens on an H100 the two constants of
# decoding make 11.4k tokens/s of that model; morphllm.com/vllm-benchmarks reports 12.5k.
BANDWIDTH = 0.77
# Qwen2.5-Omni-7B's thinker with CUDA graphs takes 13 ms a token on A800s (vllm-project/vllm-omni#7960), 9.7 ms of them
# by its weights at BANDWIDTH: what is left is the host's.
STEP_SECONDS = 0.0033
EAGER_SECONDS = 0.022  # the same without graphs: the host launches 28 layers
# MFU of RL on all weights that prime-rl publishes (benchmarks/results/BENCHMARKS.md, commit 30bf494), by width:
# Qwen3-0.6B at 16k tokens on an H100, Qwen3-4B at 65k tokens on 8 H200. MFU counts three passes; with recomputation,
# which both have, there are four. The two differ in tokens too.
MFU = ((1024, 0.111), (2560, 0.361))
OPERATIONS = MFU[-1][1] * 4 / 3  # of the peak: wide models, and all in decoding, whose kernels wait for no host
# The same table has 3.69k tokens a second for 11.90k where the 0.6B is on an A6000 (155e12 operations, 0.768e12 bytes
# a second). So what a narrow model takes beyond OPERATIONS is to three fourths the same on both: the host's. The rest
# goes by bandwidth.
HOST = 0.75
# An all-reduce between GPUs of a node, two a layer: so long for next to nothing, and the bytes at NETWORK of NVLink's
# peak. On four H100 vLLM takes 10, 15, 22 and 29 us for 0.5, 1, 2 and 4 MiB (vllm-project/vllm#24111, the fastest of
# its ways); these constants give 12, 15, 20 and 30.
ALL_REDUCE = 10e-6
NETWORK = 0.7  # of the peak of NVLink and of InfiniBand; NCCL's bus bandwidth on a DGX H100 is 75 to 80% of NVLink's
NODE = 8  # GPUs
PROMPT = 200  # tokens, the mean of DAPO-Math-17k with its instruction
WORK = 3.5 * GIB  # vLLM's own, as measured for the planner


def operations_share(hidden: int, card: Card = H100) -> float:
    """Share of a card's peak operations in passes of the trainer, by the model's width: on an H100 in proportion
    between what was measured, and constant beyond. A smaller card spends less of its time on what a narrow model takes
    besides."""
    (low, small), (high, large) = MFU
    measured = (small + (large - small) * (min(max(hidden, low), high) - low) / (high - low)) * 4 / 3
    besides = (1 / measured - 1 / OPERATIONS) / H100.operations  # seconds of an operation on an H100
    besides *= HOST + (1 - HOST) * H100.bandwidth / card.bandwidth
    return 1 / (1 / OPERATIONS + besides * card.operations)


@dataclass(frozen=True)
class Decoding:
    """An engine of `tensor` GPUs that decodes in bf16. memory: share of a GPU for weights, work and cache."""

    card: Card
    shape: Shape
    memory: float
    max_rows: int
    tensor: int = 1
    floor: float = 0.0  # seconds that a step takes at least, without CUDA graphs

    @property
    def capacity(self) -> int:
        """Tokens that the cache holds."""
        free = self.memory * self.card.bytes - WORK - 2 * self.shape.parameters / self.tensor
        return int(free / (2 * self.shape.cut_cache_numbers(self.tensor)))

    @property
    def _active(self) -> int:
        """Weights that a token meets."""
        return self.shape.layers * self.shape.layer_parameters + self.shape.head_parameters

    @property
    def _fixed(self) -> float:
        reduce = 2 * self.shape.layers * ALL_REDUCE if self.tensor > 1 else 0.0
        return STEP_SECONDS + reduce

    @property
    def _crossing(self) -> float:
        """Seconds in which the activations of a token cross NVLink, two all-reduces a layer."""
        size = 2 * self.shape.layers * 2 * self.shape.hidden
        return 2 * (self.tensor - 1) / self.tensor * size / (NETWORK * self.card.nvlink)

    def _reading(self, steps: float, held: float) -> float:
        """Seconds in which each GPU reads its part of the weights so often, and its part of the cache of so many
        tokens."""
        read = 2 * (self._active / self.tensor * steps + self.shape.cut_cache_numbers(self.tensor) * held)
        return read / (BANDWIDTH * self.card.bandwidth)

    def _computing(self, tokens: int) -> float:
        return 2 * self._active * tokens / (self.tensor * OPERATIONS * self.card.operations)

    def seconds(self, steps: int, rows: int, cached: int) -> float:
        """Seconds of so many steps with `rows` rows, which hold `cached` tokens at the start and grow by one a step."""
        held = cached * steps + rows * steps * (steps - 1) / 2
        work = max(self._reading(steps, held), self._computing(rows * steps)) + self._crossing * rows * steps
        return max(self.floor * steps, self._fixed * steps + work)

    def prefill(self, tokens: int) -> float:
        """Seconds of reading a prompt, or the tokens of a row that was preempted."""
        return self._computing(tokens) + self._crossing * tokens

    def least(self, longest: int, lengths: list[int], prompt: int, engines: int) -> float:
        """A lower bound for responses of these lengths on so many engines: the longest alone on one, and all of them
        with every row in use and nothing idle."""
        alone = self.seconds(longest, 1, prompt)
        tokens, held = sum(lengths), sum(length * prompt + length * (length - 1) / 2 for length in lengths)
        steps = tokens / self.max_rows
        work = max(self._reading(steps, held), self._computing(tokens)) + self._crossing * tokens
        return max(alone, (self._fixed * steps + work) / engines)


@dataclass(frozen=True)
class Training:
    """Passes of a model over `ranks` GPUs with sharded optimiser states (ZeRO-2)."""

    card: Card
    shape: Shape
    ranks: int

    def forward(self, pushed: int, squares: float) -> float:
        """Seconds of a forward pass on one GPU. squares: sum of the squared lengths of the sequences in it."""
        share = operations_share(self.shape.hidden, self.card)
        return self.shape.forward_operations(pushed, squares) / (share * self.card.operations)

    def optimiser_step(self) -> float:
        """Gradients reduced and weights gathered, in bf16. Between nodes each GPU carries a share of a ring."""
        if self.ranks == 1:
            return 0.0
        size, nodes = 2 * self.shape.parameters, self.ranks / NODE
        inside = 2 * size / (NETWORK * self.card.nvlink)
        between = 2 * size / (NETWORK * self.card.network * NODE) if nodes > 1 else 0.0
        states = 28 * self.shape.parameters / self.ranks / (BANDWIDTH * self.card.bandwidth)
        return inside + between + states


PASSES = 3  # of an update, in forward passes; one more with recomputation
SYNC = 2.0  # seconds to hand the weights to a sampler that wakes up in the same process, as estimated for ZeRO-2
