"""Whether a run fits on a machine, and what would make it fit: said before anything is started."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tepo.config.schema import RunConfig
from tepo.policy.shapes import Shape, shape_of
from tepo.studies.machines import Machine, StepTime, step_time
from tepo.studies.memory import GIB, Memory, memory


@dataclass(frozen=True, slots=True)
class Fit:
    """A run on a machine.

    problem: why it does not fit, or empty. changes: overrides under which it would; None when none were found.
    """

    machine: Machine
    memory: Memory
    time: StepTime
    problem: str
    changes: tuple[str, ...] | None

    def cost(self, steps: int) -> float:
        """Dollars of a run."""
        return self.time.total * steps / 3600 * self.machine.ranks * self.machine.price


def fit(config: RunConfig, machine: Machine, *, reference: bool = False) -> Fit:
    """Check a configuration on a machine.

    reference: the objective keeps a copy of the first policy. Raises UserError for a model of unknown shape.
    """
    shape = shape_of(config.model.path)
    found, problem = _check(config, shape, machine, reference)
    changes: tuple[str, ...] | None = ()
    if problem:
        changes = next(
            (
                words
                for words in _remedies(config, machine.ranks)
                if not _check(_changed(config, words), shape, machine, reference)[1]
            ),
            None,
        )
    return Fit(machine, found, step_time(config, shape, machine, found), problem, changes)


def needs_reference(config: RunConfig) -> bool:
    """Whether the objective keeps a frozen copy of the policy before training."""
    from tepo.objectives import load_objective

    needs = load_objective(config.objective).needs
    return needs.initial_logprobs or (needs.full_kl and needs.full_kl_anchor == "initial")


def _check(config: RunConfig, shape: Shape, machine: Machine, reference: bool) -> tuple[Memory, str]:
    """The memory, and what stands against it, the ranks first."""
    ranks = 1 if config.engine.kind == "torch" else machine.ranks
    found = memory(
        config,
        shape,
        ranks=ranks,
        node_ranks=min(ranks, machine.node_gpus),
        device_bytes=machine.bytes,
        reference=reference,
    )
    if config.train.mini_batch_prompts % ranks:
        return found, f"{ranks} ranks do not divide train.mini_batch_prompts={config.train.mini_batch_prompts}"
    if (
        config.engine.kind == "deepspeed"
        and config.engine.zero_stage == 0
        and (config.model.dtype == "bfloat16" or config.engine.offload)
    ):
        return found, "ZeRO stage 0 is for float32 without offload"
    if found.updating > machine.bytes:
        return found, f"the updates need {found.updating / GIB:.0f} GiB of {machine.bytes / GIB:.0f}"
    if found.sampling > machine.bytes:
        return found, f"sampling needs {found.sampling / GIB:.0f} GiB of {machine.bytes / GIB:.0f} beside the trainer"
    size = 4 if config.model.dtype == "float32" else 2
    sequence = size * shape.cache_numbers * (config.train.max_prompt_tokens + config.train.max_new_tokens)
    if config.sampler.kind == "vllm" and found.cache < sequence:
        room = f"{size * shape.parameters / GIB:.0f} GiB of weights and a sequence of full length"
        return found, f"the sampler's {found.sampler / GIB:.0f} GiB do not hold {room}"
    if found.host > machine.host:
        return found, f"main memory of a node: {found.host / GIB:.0f} GiB of {machine.host / GIB:.0f}"
    return found, ""


def _remedies(config: RunConfig, ranks: int) -> Iterator[tuple[str, ...]]:
    """Overrides that save memory: the cheapest in time first, alone and then together; with a mini-batch that the ranks
    divide where they do not."""
    size = config.train.mini_batch_prompts
    split = (
        (f"train.mini_batch_prompts={max(round(size / ranks), 1) * ranks}",)
        if size % ranks and config.engine.kind == "deepspeed"
        else ()
    )
    if split:
        yield split
    longest = config.train.max_prompt_tokens + config.train.max_new_tokens
    shares = [f"sampler.memory_fraction={share}" for share in (0.5, 0.6, 0.7, 0.8, 0.9, 0.3, 0.25)]
    trainer = []
    if not config.model.gradient_checkpointing:
        trainer.append("model.gradient_checkpointing=true")
    if config.engine.micro_batch_tokens > longest:
        trainer.append(f"engine.micro_batch_tokens={longest}")
    if config.engine.kind == "torch":
        trainer.append("engine.kind=deepspeed")
    if config.engine.zero_stage < 3:
        trainer.append("engine.zero_stage=3")
    if not config.engine.offload:
        trainer.append("engine.offload=true")
    alone = [(word,) for word in trainer]
    together = [tuple(trainer[:count]) for count in range(2, len(trainer) + 1)]
    for words in [(), *alone, *together]:
        if words:
            yield (*split, *words)
        if config.sampler.kind == "vllm":
            yield from ((*split, *words, share) for share in shares)
    for words in [(), *alone, *together]:
        yield (*split, *words, "sampler.kind=vllm_server")


def _changed(config: RunConfig, words: tuple[str, ...]) -> RunConfig:
    """The configuration with `section.key=value` overrides."""
    for word in words:
        name, _, text = word.partition("=")
        section, _, key = name.partition(".")
        old = getattr(config, section)
        value: Any = {"true": True}.get(text, text)
        kind = type(getattr(old, key))
        config = replace(config, **{section: replace(old, **{key: kind(value)})})
    return config
