"""Work of the first rank on the CPU between the passes of a step, at the size of a run of a 7B: seconds that a GPU
would wait for it, or would not because a thread does it.

    python -m perf.host_waits [FOLDER]

FOLDER: where files are written (a temporary folder by default). Sizes: 17,398 problems, 64 prompts drawn at a time,
512 responses of 2,048 tokens of which a last mini-batch of 64 sequences is dumped, a row of 80 metrics. Checkpoints and
weights are of 512 MB, and are to be scaled: both sides of their ratio grow with the size.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import torch

from tepo.config.compose import compose
from tepo.policy.model.load_policy import load_policy
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.problem import Problem
from tepo.sampling.sampler import Response
from tepo.sampling.vllm.weight_files import write_weights
from tepo.store.checkpoint_files import TensorFile
from tepo.store.run_folder import RunFolder
from tepo.training.batch import FlatRollout, Group, Prompt
from tepo.training.metrics.token_dump import token_entries, write_token_dump
from tepo.training.rollout.prompt_stream import PromptStream

PROBLEMS, PROMPTS, TOKENS, DUMPED = 17_398, 64, 2048, 64
MIB = 1 << 20


def seconds(work: Callable[[], object], times: int = 5) -> float:
    """Wall seconds, the median."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return median(taken)


def prompts(folder: Path) -> Iterator[tuple[str, float]]:
    rows = [{"id": f"p{i}", "problem": f"{i}+{i + 7}=" * 8, "answer": str(2 * i + 7)} for i in range(PROBLEMS)]
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = compose(["data.kind=problems", f"data.problems={folder / 'p.jsonl'}", "train.max_prompt_tokens=200"])
    tokenizer = load_policy("package:laptop").tokenizer
    begin = time.perf_counter()
    stream = PromptStream(config, tokenizer)
    yield "prompts: read and tokenised, once in a run", time.perf_counter() - begin
    yield "prompts: the first of a pass over the problems", seconds(lambda: stream.take(0, PROMPTS), 1)
    yield "prompts: the next 64", seconds(lambda: stream.take(PROMPTS, PROMPTS))


def grading() -> Iterator[tuple[str, float]]:
    text = "We add, and then carry the one. " * 200 + "The answer is \\boxed{\\frac{%d}{4}}."
    unseen = count(1)
    with Grader(GraderOptions()) as grader:

        def group() -> None:
            grader.grade([("0.75", text % next(unseen)) for _ in range(8)])

        group()  # the workers start
        yield "grading: the last group of a rollout", seconds(group)
        yield "grading: Python's lock held in a rollout, at most", held(grader)


def held(grader: Grader) -> float:
    """CPU seconds of the thread that decodes and grades the 1,100 responses, of 400 tokens, which a step of
    scale=single_gpu draws: in the same process it can keep vLLM's scheduler waiting no longer than that."""
    ways = ("\\boxed{%d}", "\\boxed{\\frac{%d}{7}}", "\\boxed{%d\\sqrt{2}}", "\\boxed{x = %d}", "The answer is %d")
    tokenizer = load_policy("package:laptop").tokenizer
    working = "We add, and then carry the one. " * 50  # 1,600 characters
    tokens = tokenizer(["1+2=" * 100] * 8)["input_ids"]
    begin = time.thread_time()
    for number in range(1100 // 8):
        tokenizer.batch_decode(tokens)
        golds = (str(number), f"\\frac{{{number}}}{{7}}")
        texts = [working + ways[(number + one) % len(ways)] % (number + one % 3) for one in range(8)]
        grader.grade([(golds[number % 2], text) for text in texts])
    return time.thread_time() - begin


def records(folder: Path) -> Iterator[tuple[str, float]]:
    run, row = RunFolder(folder / "run"), {f"metric/{i}": i / 7 for i in range(80)}
    run.path.mkdir()
    yield "metrics: a row, flushed to the disk", seconds(lambda: run.append_metrics(row))
    tokenizer, random = load_policy("package:laptop").tokenizer, np.random.default_rng(0)
    responses = [
        Response(random.integers(5, 25, TOKENS, dtype=np.int32), np.zeros(TOKENS, np.float32), None, True)
        for _ in range(DUMPED)
    ]
    prompt = Prompt(0, Problem("p", "1+1=", "2"), [5, 6])
    rollout = FlatRollout([Group(prompt, responses, np.zeros(DUMPED, np.float32))], torch.device("cpu"))
    named = {name: torch.rand(DUMPED * TOKENS) for name in ("advantage", "entropy", "log_ratio", "entropy_change")}

    def dump() -> None:
        entries = token_entries(rollout, [(list(range(DUMPED)), named)], tokenizer)
        write_token_dump(folder / "tokens.json", 1, "tepo", entries)

    yield "tokens: a dump, at the last step", seconds(dump, 3)


def files(folder: Path) -> Iterator[tuple[str, float]]:
    weights = {f"layer{i}": torch.full((1024, 1024), float(i)) for i in range(127)}
    weights["lm_head.weight"] = torch.zeros(1024, 1024)
    file, copies = TensorFile("checkpoint.safetensors", weights), []
    yield "checkpoint: copied, while training waits", seconds(lambda: copies.append(file.copy()) or copies.clear())
    copied = file.copy()
    yield "checkpoint: written, in a thread", seconds(lambda: copied.write(folder))
    yield "checkpoint: hashed, in the same thread", seconds(lambda: copied.digest(folder))

    class Read(dict[str, torch.Tensor]):
        """Each tensor takes a copy, as off a GPU or out of the shards of other ranks."""

        def __getitem__(self, name: str) -> torch.Tensor:
            return super().__getitem__(name).clone()

    taken = {1 << 40: [], 64 * MIB: []}  # type: dict[int, list[float]]
    for _ in range(7):  # in turns
        for bucket, each in taken.items():
            each.append(seconds(partial(write_weights, Read(weights), folder, bucket), 1))
    one, several = map(median, taken.values())
    yield "weights to servers: all read, then one file", one
    yield "weights to servers: in files of 64 MB", several


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for part in (prompts(folder), grading(), records(folder), files(folder)):
        for what, taken in part:
            print(f"{what:52} {taken:9.4f} s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
