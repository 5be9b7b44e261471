"""Progress of a run and the rollouts that wait for their step, as its checkpoints carry them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tepo.common.files import parse_json, write_json
from tepo.sampling.sampler import Response
from tepo.store.checkpoint_files import read_progress
from tepo.store.early_stop import Best, EarlyStop, read_best, read_ending
from tepo.store.run_folder import RunFolder
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.rollout_batch import FlatRollout, Group

_OLD = ("old_logprobs", "old_entropies", "old_distribution", "initial_logprobs", "teacher_logprobs")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    step: int = 0  # the last finished one
    prompts: int = 0  # drawn so far
    consumed: int = 0  # those of the last rollout; 0: there was none
    pending: tuple[FlatRollout, ...] = ()  # the rollouts of the next steps, in order, as many as are drawn
    rewards: tuple[float, ...] = ()  # of each finished step, the mean over the responses that it trained or dropped
    best: Best | None = None  # with train.keep_best
    early_stop: EarlyStop | None = None  # why no more is drawn; what is pending is trained first
    tokens: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of each token dump, by the name of its file

    @property
    def saved(self) -> dict[str, Any]:
        """Entries of a checkpoint's `progress.json` beside the step."""
        ending = {} if self.early_stop is None else {"ending": asdict(self.early_stop.ending)}
        best = {} if self.best is None else {"best": asdict(self.best)}
        return {"prompts": self.prompts, "consumed": self.consumed, "tokens": dict(self.tokens), **best, **ending}


def write_pending(folder: Path, pending: Sequence[FlatRollout]) -> None:
    """Add the rollouts to a checkpoint's folder, as `rollouts/step_000005.safetensors` and `.json`."""
    for number, waiting in enumerate(pending):
        file = folder / "rollouts" / f"step_{waiting.step:06d}.safetensors"
        if number == 0:
            file.parent.mkdir(exist_ok=True)
        save_file(dict(_tensors(waiting)), file)
        write_json(file.with_suffix(".json"), {"step": waiting.step, "metrics": waiting.metrics})


def resume(run: RunFolder, checkpoint: Path | None, stream: PromptStream, device: torch.device) -> Progress:
    """Progress of a run at a checkpoint; at its start without one."""
    if checkpoint is None:
        return Progress()
    saved, pending = read_progress(checkpoint), read_pending(checkpoint, stream, device)
    rewards = tuple(row["critic/score/mean"] for row in run.metrics()[: saved["step"]])
    early_stop = None
    if "ending" in saved:
        ending = read_ending(saved["ending"])
        early_stop = EarlyStop(ending.kind, ending.step, ending.why)
    best, tokens = read_best(saved.get("best")), saved.get("tokens", {})
    return Progress(saved["step"], saved["prompts"], saved["consumed"], pending, rewards, best, early_stop, tokens)


def read_pending(folder: Path, stream: PromptStream, device: torch.device) -> tuple[FlatRollout, ...]:
    """The rollouts of a checkpoint's folder, by step. Prompts are those of the stream with the same numbers."""
    pending: list[FlatRollout] = []
    for file in sorted((folder / "rollouts").glob("step_*.safetensors")):
        saved, tensors = parse_json(file.with_suffix(".json").read_bytes()), load_file(file)
        rollout = FlatRollout(_groups(tensors, stream), device, saved["step"], saved["metrics"])
        for name in _OLD:
            if name in tensors:
                setattr(rollout, name, tensors[name].to(device))
        pending.append(rollout)
    return tuple(pending)


def _tensors(rollout: FlatRollout) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a saved rollout: G groups, S sequences, N tokens."""
    groups = rollout.groups
    yield "numbers", torch.tensor([group.prompt.number for group in groups])  # [G]
    yield "timeouts", torch.tensor([group.timeouts for group in groups])  # [G]
    yield "lengths", rollout.lengths_tensor.cpu()  # [S]
    yield "finished", rollout.finished.cpu()  # [S]
    yield "rewards", rollout.rewards.cpu()  # [S]
    if rollout.named is not None:
        yield "named", rollout.named.cpu()  # [S, K]
        yield "weights", torch.tensor(rollout.weights, dtype=torch.float64)  # [K]
    yield "tokens", rollout.targets().to("cpu", torch.int32)  # [N]
    yield "sampler_logprobs", rollout.sampler_logprobs.cpu()  # [N]
    for name in _OLD:
        value: Tensor | None = getattr(rollout, name)
        if value is not None:
            yield name, value.to("cpu", copy=True).contiguous()  # [N] or [N, V]; a copy, as two may be one tensor


def _groups(tensors: dict[str, Tensor], stream: PromptStream) -> list[Group]:
    """The groups of a saved rollout."""
    bounds = np.cumsum(tensors["lengths"].numpy())[:-1]
    tokens, logprobs = (np.split(tensors[name].numpy(), bounds) for name in ("tokens", "sampler_logprobs"))
    # The sampler's entropies were replaced by the trainer's.
    responses = [
        Response(row, values, None, finished)
        for row, values, finished in zip(tokens, logprobs, tensors["finished"].tolist(), strict=True)
    ]
    numbers, timeouts = tensors["numbers"].tolist(), tensors["timeouts"].tolist()
    size = len(responses) // len(numbers)
    rewards = np.split(tensors["rewards"].numpy(), len(numbers))
    named: Sequence[np.ndarray | None] = [None] * len(numbers)
    weights: tuple[float, ...] = ()
    if "named" in tensors:
        named, weights = np.split(tensors["named"].numpy(), len(numbers)), tuple(tensors["weights"].tolist())
    return [
        Group(
            stream.take(number, 1)[0],
            responses[index * size : (index + 1) * size],
            rewards[index],
            timeouts[index],
            named=named[index],
            weights=weights,
        )
        for index, number in enumerate(numbers)
    ]
