"""The simulated engine against a real one: vLLM's CPU build on the laptop model, one thread, in CPU seconds.

Four constants (a step, a row of a step, a cached token of a step, a request) are fitted to some calls and judged on
others, between the fitted sizes and beyond them; in the largest of both, rows wait for others to end. A call
gives the lengths of its responses, and the simulated engine draws the same ones.
Run: OMP_NUM_THREADS=1 python -m perf.simulate_cpu
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from perf.sampler import LAPTOP, laptop_case
from tepo.planning.simulator.clocked_sampler import Engine
from tepo.sampling.sampler import SamplingParams
from tepo.sampling.vllm.vllm_sampler import EngineOptions, VllmSampler

SIDE_BY_SIDE, SAMPLES, NEW_TOKENS = 64, 4, 64
FITTED, JUDGED, TURNS = (1, 4, 16, 32), (2, 8, 24, 48), 9  # prompts of a call
WITHIN = 0.2


@dataclass(frozen=True)
class CpuRate:
    """Seconds as a sum of four costs."""

    step: float
    row: float
    cached: float
    request: float
    max_rows: int = SIDE_BY_SIDE
    capacity: int = 10**9

    def seconds(self, steps: int, rows: int, cached: int) -> float:
        held = cached * steps + rows * steps * (steps - 1) / 2
        return self.step * steps + self.row * rows * steps + self.cached * held

    def prefill(self, tokens: int) -> float:
        return self.request


def simulated(rate: CpuRate, call: Sequence[tuple[int, int]]) -> float:
    """Seconds of drawing responses, each given as the lengths of its prompt and itself."""
    engine = Engine(rate)
    for number, (prompt, length) in enumerate(call):
        engine.add(number, length, prompt)
    while engine.run(float("inf")):
        pass
    return engine.clock


def calls(sizes: Sequence[int]) -> list[tuple[int, float, list[tuple[int, int]]]]:
    """Prompts of a call, its CPU seconds, its lengths; each size `TURNS` times, on other prompts each time."""
    _, tokenizer, prompts = laptop_case()
    options = EngineOptions(str(LAPTOP), "float32", 128, max_rows=SIDE_BY_SIDE)
    sampler = VllmSampler(options, [tokenizer.eos_token_id], memory_fraction=0.25)
    params, done = SamplingParams(n=SAMPLES, temperature=1.0, max_new_tokens=NEW_TOKENS), []
    sampler.sample(prompts[:4], range(4), params)  # what is made at the first call
    for turn in range(TURNS):
        for size in sizes:
            chosen = [prompts[(turn * 7 + index) % len(prompts)] for index in range(size)]
            keys = [1000 * turn + index for index in range(size)]
            begin = time.process_time()
            groups = sampler.sample(chosen, keys, params)
            spent = time.process_time() - begin
            pairs = zip(chosen, groups, strict=True)
            lengths = [(len(prompt), len(one.tokens)) for prompt, group in pairs for one in group]
            done.append((size, spent, lengths))
    return done


def fit(measured: Sequence[tuple[int, float, list[tuple[int, int]]]]) -> CpuRate:
    """The constants with the smallest relative error; none below 0."""
    from scipy.optimize import nnls

    units = np.eye(4).tolist()
    parts = np.array([[simulated(CpuRate(*unit), call) for unit in units] for _, _, call in measured])
    seconds = np.array([spent for _, spent, _ in measured])
    return CpuRate(*nnls(parts / seconds[:, None], np.ones(len(seconds)))[0].tolist())


def main() -> None:
    torch.set_num_threads(1)
    measured = calls(sorted({*FITTED, *JUDGED}))
    rate = fit([one for one in measured if one[0] in FITTED])
    print(f"fitted to calls of {FITTED} prompts: {rate}")
    for size in JUDGED:
        same = [one for one in measured if one[0] == size]
        share = median(simulated(rate, call) / spent for _, spent, call in same)
        verdict = "within 20%" if abs(share - 1) <= WITHIN else "NOT within 20%"
        print(f"{size * SAMPLES:4} rows: simulated / measured {share:.2f}, median of {TURNS}  {verdict}")


if __name__ == "__main__":
    main()
