"""A program for test_ranks.py: a rollout over ranks, each with an engine of vLLM, and the same groups without a queue.

    python -m tests.integration.queue_run FOLDER

Each rank writes FOLDER/rank_N.json: the parts that it was given, the groups of the rollout, what its engine has left,
and the same groups sampled by this rank alone, each in full.
"""

import json
import sys
from pathlib import Path

import torch

from tepo.common.randomness import derive
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.model_location import resolve
from tepo.problems.grader import Grader
from tepo.sampling.sampler import SamplingParams
from tepo.sampling.stop_tokens import stop_tokens
from tepo.sampling.vllm.vllm_sampler import EngineOptions, EngineQueue, VllmSampler
from tepo.training.distributed.process_group import start
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.prompt_stream import PromptStream
from tests.unit.training.small import small


class Noted(VllmSampler):
    """Keeps its queue, and the numbers of the jobs that it was given."""

    def start(self, params: SamplingParams) -> EngineQueue:
        self.given: list[int] = []

        class Noting(EngineQueue):
            def add(queue, jobs):
                self.given += [job.number for job in jobs]
                super().add(jobs)

        self.queue = Noting(self, params)
        return self.queue


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    comm, policy = start(torch.device("cpu")), load_policy("package:laptop")
    config = small(folder, "sampler=vllm", "sampler.margin=2", "train.max_rounds=10")
    options = EngineOptions(resolve("package:laptop"), "float32", 128, max_rows=8)
    sampler = Noted(options, stop_tokens(policy.model, policy.tokenizer), memory_fraction=0.06)
    stream = PromptStream(config, policy.tokenizer)
    with Grader() as grader:
        rollout = Collector(config, stream, sampler, grader, comm).collect(0, 1, 0, StepMetrics())
    given, left = sampler.given, sampler.llm.llm_engine.has_unfinished_requests()
    numbers = [group.prompt.number for group in rollout.groups]
    keys = [derive(config.seed, "rollout", 1, number) for number in numbers]
    params = SamplingParams(n=4, temperature=1.0, max_new_tokens=config.train.max_new_tokens)
    alone = sampler.sample([group.prompt.tokens for group in rollout.groups], keys, params)
    result = {
        "given": given,
        "left": left,
        "numbers": numbers,
        "consumed": rollout.consumed,
        "left_over": rollout.left_over,
        "mixed": [number for number, group in enumerate(rollout.drawn) if len(set(group.rewards)) > 1],
        "rewards": [group.rewards.tolist() for group in rollout.groups],
        "tokens": [[response.tokens.tolist() for response in group.responses] for group in rollout.groups],
        "alone": [[response.tokens.tolist() for response in group] for group in alone],
    }
    (folder / f"rank_{comm.rank}.json").write_text(json.dumps(result))
    comm.barrier()
    sampler.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
