"""The tracked success rate of each prompt, SPO's baseline (Xu and Ding 2509.13232): a Beta distribution over visits,
which forgets by how far the policy has moved since the last one. The figures are of their code (verl-recipe,
spo/spo_ray_trainer.py), without values from before training (its `offline_N: 0`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tepo.common.files import parse_json, write_json
from tepo.sampling.sampler import Response
from tepo.store.checkpoint_files import ROLLOUTS
from tepo.training.rollout_batch import FlatRollout, Group

PRIOR = 0.5  # of both counts
HALF = 0.06  # mean |log-ratio| of a token at which a visit counts half
LEAST, MOST = 0.875, 0.96  # of what a visit keeps; the first has MOST
_FILE = "values.safetensors"


@dataclass(frozen=True, slots=True)
class Visits:
    """The record of a prompt. tokens: a response of the last visit [T]. logprobs: by the policy after that step."""

    right: float = PRIOR
    wrong: float = PRIOR
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    logprobs: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))


class ValueTracker:
    """The visits of all prompts, by the id of their problem."""

    def __init__(self) -> None:
        self.known: dict[str, Visits] = {}

    def values(self, groups: Sequence[Group]) -> list[float]:
        """The success rate of each group's prompt, before what the group itself says."""
        records = [self.known.get(group.prompt.problem.id, Visits()) for group in groups]
        return [record.right / (record.right + record.wrong) for record in records]

    def visit(self, rollout: FlatRollout, logprobs: Callable[[FlatRollout], Tensor]) -> None:
        """Take in the rewards of a rollout, after its updates. logprobs: of tokens, by the policy as it is now."""
        before = [self.known.get(group.prompt.problem.id, Visits()) for group in rollout.groups]
        new = [_of_one(group, group.responses[0]) for group in rollout.groups]
        old = [
            _of_one(group, Response(record.tokens, record.logprobs, None, True))
            for group, record in zip(rollout.groups, before, strict=True)
            if len(record.tokens)
        ]
        scored = FlatRollout([*new, *old], rollout.device)
        parts = list(np.split(logprobs(scored).cpu().numpy(), scored.offsets[1:-1]))
        again = iter(parts[len(new) :])
        for group, record, now in zip(rollout.groups, before, parts, strict=False):
            moved = float(np.abs(next(again).astype(float) - record.logprobs).mean()) if len(record.tokens) else 0.0
            retention, number = min(max(2 ** (-moved / HALF), LEAST), MOST), group.prompt.problem.id
            last, right = self.known.get(number, record), float(group.rewards.sum(dtype=float))
            counts = retention * last.right + right, retention * last.wrong + len(group.rewards) - right
            self.known[number] = Visits(*counts, group.responses[0].tokens, now)

    def write(self, folder: Path) -> None:
        """Add the state to a checkpoint's folder."""
        file, visits = folder / ROLLOUTS / _FILE, list(self.known.values())
        file.parent.mkdir(exist_ok=True)
        counts = torch.tensor([(record.right, record.wrong) for record in visits], dtype=torch.float64)
        lengths = torch.tensor([len(record.tokens) for record in visits])
        tokens, logprobs = (
            torch.from_numpy(np.concatenate([getattr(record, name) for record in [Visits(), *visits]]))
            for name in ("tokens", "logprobs")
        )
        save_file({"counts": counts, "lengths": lengths, "tokens": tokens, "logprobs": logprobs}, file)
        write_json(file.with_suffix(".json"), list(self.known))

    @classmethod
    def read(cls, folder: Path | None) -> "ValueTracker":
        """The state in a checkpoint's folder; without one, that of a run that begins."""
        tracker = cls()
        if folder is None:
            return tracker
        file = folder / ROLLOUTS / _FILE
        saved = {name: value.numpy() for name, value in load_file(file).items()}
        bounds = np.cumsum(saved["lengths"])[:-1]
        parts = (np.split(saved[name], bounds) for name in ("tokens", "logprobs"))
        names, counts = parse_json(file.with_suffix(".json").read_bytes()), saved["counts"].tolist()
        for name, (right, wrong), *response in zip(names, counts, *parts, strict=False):
            tracker.known[name] = Visits(right, wrong, *response)
        return tracker


def _of_one(group: Group, response: Response) -> Group:
    """A group's prompt with a single response."""
    return replace(group, responses=[response], rewards=group.rewards[:1], named=None)
