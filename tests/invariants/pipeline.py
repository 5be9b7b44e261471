"""One rollout through packing, fused log-probs and entropies, the updater, and an engine that keeps its gradients."""

import threading
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.objectives import Objective
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.packing.packing import pack
from tepo.problems.problem import Problem
from tepo.sampling.gap import GapAlarm
from tepo.sampling.sampler import Response
from tepo.training.distributed.comm import Comm
from tepo.training.loop import update
from tepo.training.metrics.step_metrics import StepMetrics
from tepo.training.rollout_batch import FlatRollout, Group, Prompt
from tepo.training.update import Updater
from tests.support.models import VOCABULARY, make_model

SIZE, LIMIT = 4, 9  # responses a group, longest response
WHOLE = 10**6  # tokens: everything in one micro-batch
_SEEDING = threading.Lock()  # simulated ranks are threads, and torch has one generator


@dataclass
class KeepingEngine:
    """Sums gradients over micro-batches and ranks, keeps them, and takes a plain gradient step."""

    model: nn.Module
    comm: Comm | None = None
    kept: list[Tensor] = field(default_factory=list)
    backwards: int = 0

    def backward(self, loss: Tensor) -> None:
        self.backwards += 1
        loss.backward()

    @torch.no_grad()
    def step(self, learning_rate: float) -> dict[str, float]:
        parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        flat = torch.cat([(torch.zeros_like(one) if one.grad is None else one.grad).flatten() for one in parameters])
        total = flat if self.comm is None else self.comm.all_sum(flat)
        self.kept.append(total)
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, part in zip(parameters, total.split(sizes), strict=True):
            parameter -= learning_rate * part.view_as(parameter)
        self.model.zero_grad()
        return {}


def make_policy(dtype: torch.dtype, spread: float = 0.1) -> PreTrainedModel:
    """A random Qwen2. Its norms go through float32 whatever the dtype, so they are replaced by torch's own.
    `spread` of its weights: at 0.1 the network's own rounding moves a float32 gradient by less than half of 1e-6,
    at 0.2 by more than that."""
    with _SEEDING:
        model = make_model("qwen2", dtype, initializer_range=spread)
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "Qwen2RMSNorm":
            norm = nn.RMSNorm(module.weight.shape[0], eps=module.variance_epsilon, dtype=dtype)
            norm.weight = module.weight
            owner, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(owner), leaf, norm)
    return model


def make_groups(count: int = 5) -> list[Group]:
    """Mixed groups with the statistics of a policy near the one that is trained; lengths 1 to LIMIT."""
    rng, model = np.random.default_rng(3), make_policy(torch.float64)
    groups = []
    for number in range(count):
        prompt = rng.integers(0, VOCABULARY, size=rng.integers(2, 7)).tolist()
        tokens = [
            rng.integers(0, VOCABULARY, size=1 if place == number else rng.integers(1, LIMIT + 1)).astype(np.int32)
            for place in range(SIZE)
        ]
        with torch.no_grad():
            near = token_statistics(model, pack([(prompt, tokens)]))
        places = np.split(np.arange(sum(map(len, tokens))), np.cumsum([len(row) for row in tokens])[:-1])
        responses = []
        for row, own in zip(tokens, places, strict=True):
            logprobs = np.minimum(near.logprobs.numpy()[own] + 0.3 * rng.standard_normal(len(row)), -0.01)
            entropies = near.entropies.numpy()[own] + 0.1 * rng.standard_normal(len(row))
            statistics = (values.astype(np.float32) for values in (logprobs, np.abs(entropies)))
            responses.append(Response(row, *statistics, len(row) < LIMIT))
        rewards = np.array([1, 0, 0, number % 2], dtype=np.float32)
        groups.append(Group(Prompt(number, Problem(str(number), "", ""), prompt), responses, rewards))
    return groups


def turned(groups: list[Group]) -> list[Group]:
    """The groups in another order. Within a group the order stays: a response's place is part of its identity."""
    return [groups[place] for place in (3, 0, 4, 2, 1)]


@cache
def configuration(groups: int) -> RunConfig:
    """Two updates on one mini-batch of all groups."""
    sizes = (f"train.{name}={groups}" for name in ("prompts_per_step", "mini_batch_prompts"))
    return compose([f"train.max_new_tokens={LIMIT}", *sizes, "train.epochs=2", "train.learning_rate=0.05"])


def run(
    objective: Objective, groups: list[Group], budget: int, dtype: torch.dtype, comm: Comm | None = None
) -> tuple[list[Tensor], dict[str, float], int]:
    """Gradients of two updates on one mini-batch, the metrics, and the number of micro-batches."""
    config = configuration(len(groups))
    config = replace(config, engine=replace(config.engine, micro_batch_tokens=budget))
    engine = KeepingEngine(make_policy(dtype), comm)
    alarm = GapAlarm(1e9, temperature=1.0, dtypes=("float32", "float32"))
    initial = make_policy(dtype) if objective.needs.initial_policy else None
    teacher = make_policy(dtype, spread=0.15) if objective.needs.teacher_logprobs else None
    updater = Updater(config, objective, engine, alarm, initial, teacher)
    rollout = FlatRollout(groups, torch.device("cpu"))
    updater.compute_old_logprobs(rollout)
    rollout.values = torch.tensor([0.1 + 0.2 * group.prompt.number for group in groups])[rollout.owners]
    metrics = update(updater, rollout, 1, StepMetrics())
    return engine.kept, {name: value for name, value in metrics.items() if name.startswith("actor/")}, engine.backwards
