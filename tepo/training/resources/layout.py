"""The layout of a run on its GPUs: what a configuration leaves open (null) of how a run lies on them.

GPUs of a sampling engine, tokens of a micro-batch, ZeRO stage: of those that fit, the ones with the shortest step by
`tepo.training.resources.estimate`. Rows of the sampler, recomputation and where the optimiser lies: by memory alone.
Results depend on none of it but for rounding, so it is no part of a run's id.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tepo.common.errors import UserError
from tepo.policy.model.shapes import number_bytes
from tepo.sampling.backends import RESERVE, Room, SamplerMemory, longest_sequence
from tepo.training.resources.estimate import step_time
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.memory import CONTEXT, Gpus, Memory, memory, sequence_bytes
from tepo.training.run import Run

USUAL = {"sampler.tensor_parallel": 1, "engine.micro_batch_tokens": 16384, "engine.zero_stage": 2}  # without a GPU
LAYOUT = (*USUAL, "model.gradient_checkpointing", "engine.offload")  # what of it decides whether a run fits
_TENSOR_PARALLEL, _ZERO_STAGES = (1, 2, 4, 8), (2, 1, 3)
_WORTH = 0.02  # share of a step that a setting must save to be another than the usual one
# vLLM captures graphs of at most 512 rows (config/vllm.py, before Blackwell): of more each step waits for the host
_ROWS = (*range(512, 128, -32), *range(128, 32, -8), *range(32, 0, -4))
_ROWS_ON_CPU, _ROWS_IN_FULL = 256, 1024  # without a GPU; of a sampler whose rows keep room for the longest sequence
_UNDER_WAY = 8  # a row has room for an eighth of the longest sequence: half of the mean that plans assume
_SURE = 0.9  # of the memory: activations that are not made again are most of a plan, and counted by hand
_PLAN = "`tepo plan` and `tepo train --dry-run` name what makes it fit; sampler.memory_fraction overrules the plan"


@dataclass(frozen=True)
class _Trial:
    """A layout. lacks: bytes that are missing for it; seconds: of a step."""

    run: Run
    why: dict[str, str]
    lacks: float
    seconds: float
    weighed: float


def fill(run: Run, gpus: Gpus) -> tuple[Run, dict[str, str]]:
    """The run with the settings that it leaves open (null) chosen for these GPUs, and by key what was chosen and why.
    Where no layout fits, the one that lacks least."""
    if run.config.engine.offload is not None:
        best = _best(run, gpus)
        return best.run, best.why
    # only where nothing fits without it: what it saves is counted, and what it costs a run assumed
    plain, why = _best(run.having("engine.offload", False), gpus), "no GPU"
    if gpus.bytes:
        why = f"{'no layout' if plain.lacks else 'a layout'} fits without"
    if plain.lacks:
        moved = _best(run.having("engine.offload", True), gpus)
        if moved.lacks < plain.lacks:
            return moved.run, {"engine.offload": f"true: {why}", **moved.why}
    return plain.run, {"engine.offload": f"false: {why}", **plain.why}


def _best(run: Run, gpus: Gpus) -> _Trial:
    """What `fill` chooses where it is said whether the optimiser is offloaded."""
    choices = {key: values for key, values in _choices(run, gpus).items() if run.get(key) is None}
    tried: dict[tuple[int, ...], _Trial] = {}
    for values in itertools.product(*choices.values()):
        trial = run
        for key, value in zip(choices, values, strict=True):
            trial = trial.having(key, value)
        trial, why = _rows_and_recomputation(trial, gpus)
        if not gpus.bytes:
            return _Trial(trial, why, 0.0, 0.0, 0.0)
        if not _allowed(trial, gpus.ranks):
            continue
        needed = memory(trial, gpus)
        seconds = step_time(trial, gpus, needed).total
        others = sum(USUAL[key] != value for key, value in zip(choices, values, strict=True))
        lacks = sum(max(bytes, 0.0) for bytes, _ in lacking(trial, gpus, needed))
        tried[values] = _Trial(trial, why, lacks, seconds, seconds * (1 + _WORTH * others))
    if not tried:  # settings that cannot be, whatever the layout: who checks them says why
        for key in choices:
            run = run.having(key, USUAL[key])
        return _Trial(*_rows_and_recomputation(run, gpus), math.inf, 0.0, 0.0)
    best = min(tried, key=lambda values: (tried[values].lacks, tried[values].weighed))
    reasons = {
        key: _reason(tried, best, place) for place, (key, values) in enumerate(choices.items()) if len(values) > 1
    }
    return replace(tried[best], why={**reasons, **tried[best].why})


def is_open(run: Run) -> bool:
    """True where a run leaves a part of its layout open."""
    return any(run.get(key) is None for key in (*LAYOUT, "sampler.max_rows"))


def _choices(run: Run, gpus: Gpus) -> dict[str, Sequence[int]]:
    """Values of each setting that a closed form chooses, the usual first. One GPU has nothing to cut but what is
    offloaded to main memory."""
    choices: dict[str, Sequence[int]] = {key: (value,) for key, value in USUAL.items()}
    if gpus.bytes:
        usual, longest = USUAL["engine.micro_batch_tokens"], longest_sequence(run.config)
        choices["engine.micro_batch_tokens"] = tuple(
            dict.fromkeys((usual, max(longest, usual // 2), 2 * usual, longest))
        )
        choices["sampler.tensor_parallel"] = tuple(size for size in _TENSOR_PARALLEL if gpus.node_ranks % size == 0)
        if run.engine.several_ranks and (gpus.ranks > 1 or run.config.engine.offload):
            choices["engine.zero_stage"] = _ZERO_STAGES
    return choices


def _allowed(run: Run, ranks: int) -> bool:
    try:
        run.check_ranks(ranks)
    except UserError:
        return False
    return True


def _reason(tried: Mapping[tuple[int, ...], _Trial], best: tuple[int, ...], place: int) -> str:
    """`4: 125 s a step by estimate; 1: 155 s, 2: 133 s, 8: no room`."""
    least: dict[int, _Trial] = {}
    for values, trial in tried.items():
        incumbent = least.get(values[place])
        if incumbent is None or (trial.lacks, trial.weighed) < (incumbent.lacks, incumbent.weighed):
            least[values[place]] = trial
    winner = least.pop(best[place])
    summary = f"{winner.seconds:.0f} s a step by estimate" if not winner.lacks else "nothing fits, and this lacks least"
    others = (
        f"{value}: {'no room' if rival.lacks else f'{rival.seconds:.0f} s'}" for value, rival in sorted(least.items())
    )
    return "; ".join(filter(None, (f"{best[place]}: {summary}", ", ".join(others))))


def lacking(run: Run, gpus: Gpus, found: Memory) -> Iterator[tuple[float, str]]:
    """Bytes that each part of a run lacks on its GPUs (negative: are left), with the sentence that says it."""
    of, free_bytes = f"of {gpus.bytes / GIB:.0f}", gpus.bytes - gpus.taken - RESERVE
    sampling, host = max(found.sampling, found.syncing), max(found.host, found.load_host)
    yield found.updating - free_bytes, f"the updates need {found.updating / GIB:.0f} GiB {of}"
    yield sampling - free_bytes, f"sampling needs {sampling / GIB:.0f} GiB {of} beside the trainer"
    yield found.loading - free_bytes, f"loading needs {found.loading / GIB:.0f} GiB {of}"
    if found.cache is not None:
        weights = (
            number_bytes(run.config.model.dtype) * run.shape.parameters / (run.config.sampler.tensor_parallel or 1)
        )
        room = f"{weights / GIB:.0f} GiB of weights and a sequence of full length"
        lacks = sequence_bytes(run) - found.cache
        yield lacks, f"the sampler's {found.sampler / GIB:.0f} GiB do not hold {room}"
    yield host - gpus.host, f"main memory of a node: {host / GIB:.0f} GiB of {gpus.host / GIB:.0f}"


def _rows_and_recomputation(run: Run, gpus: Gpus) -> tuple[Run, dict[str, str]]:
    """Both by memory, where they are open, and why."""
    why: dict[str, str] = {}
    if run.config.sampler.max_rows is None:

        def look(trial: Run) -> tuple[float | None, float]:
            footprint = memory(trial.having("model.gradient_checkpointing", True), gpus)
            return footprint.cache, max(footprint.sampling, footprint.syncing)

        run, why["sampler.max_rows"] = _rows(run, gpus, look)
    if run.config.model.gradient_checkpointing is None:
        plain, reason = run.having("model.gradient_checkpointing", False), "false: no GPU"
        if gpus.bytes:  # only where the updates do not fit without it for sure
            room, without = _SURE * (gpus.bytes - gpus.taken), memory(plain, gpus).updating
            fits = without <= room
            reason = f"{str(not fits).lower()}: the updates take {without / GIB:.1f} of {room / GIB:.1f} GiB without"
            plain = plain if fits else run.having("model.gradient_checkpointing", True)
        run, why["model.gradient_checkpointing"] = plain, reason
    return run, why


def _rows(run: Run, gpus: Gpus, look: Callable[[Run], tuple[float | None, float]]) -> tuple[Run, str]:
    """The most rows that the cache has room for. look: bytes of the cache and of all while a run samples."""
    if not gpus.bytes:
        return run.having("sampler.max_rows", _ROWS_ON_CPU), f"{_ROWS_ON_CPU}: no GPU"
    full_rows = run.sampler.full_rows  # it takes no more of them than fit
    each = sequence_bytes(run) / _UNDER_WAY
    for rows in (_ROWS_IN_FULL, *_ROWS) if full_rows else _ROWS:
        trial = run.having("sampler.max_rows", rows)
        cache, peak = look(trial)
        if cache is None:
            return trial, f"{rows}: the sampler has GPUs of its own"
        if peak <= gpus.bytes - gpus.taken and (full_rows or cache >= rows * each):
            break
    assert cache is not None
    if full_rows:
        return trial, f"{rows}: at most, of those that fit into {cache / GIB:.1f} GiB of cache"
    room = f"{cache / GIB:.1f} GiB of cache, {each / 2**20:.0f} MiB a row"
    return trial, f"{rows}: {room}" + (", and no graph holds more" if rows == _ROWS[0] else "")


def with_share(run: Run, gpus: Gpus) -> Run:
    """The run, which leaves no layout open, with the share of a GPU that the plan leaves to the sampler,
    where none is given.

    Raises UserError where that does not hold the weights and a sequence of full length.
    """
    footprint = memory(run, gpus)
    return _given(run, gpus, SamplerMemory(footprint.sampler, footprint.cache))


def with_all(run: Run, gpus: Gpus) -> Run:
    """The same for a sampler that has one GPU for itself, as when a finished run is measured. Its rows are chosen where
    they are open; on a CPU nothing else."""
    run = run.having("sampler.tensor_parallel", 1)
    room = Room(gpus.bytes, CONTEXT + gpus.taken, shared=False)

    def look(trial: Run) -> tuple[float | None, float]:
        sampler_memory = trial.sampler.memory(trial.config, trial.shape, room)
        return sampler_memory.cache, sampler_memory.total + CONTEXT

    if run.config.sampler.max_rows is None:
        run, _ = _rows(run, gpus, look)
    if not gpus.bytes:
        return run
    return _given(run, gpus, run.sampler.memory(run.config, run.shape, room))


def _given(run: Run, gpus: Gpus, sampler: SamplerMemory) -> Run:
    if run.config.sampler.memory_fraction is not None:
        return run
    if sampler.cache is not None and sampler.cache < sequence_bytes(run):
        what = f"{sampler.total / GIB:.1f} of {gpus.bytes / GIB:.0f} GiB are left for the sampler: too little for"
        what += " the weights, its own work and the cache of one sequence"
        fix = _PLAN
        if gpus.taken:
            what += f"; other processes hold {gpus.taken / GIB:.1f} GiB"
            fix = f"end them, or choose another GPU with CUDA_VISIBLE_DEVICES; {_PLAN}"
        raise UserError(what, where=f"sampler={run.config.sampler.kind}", fix=fix)
    share = int(1000 * sampler.total / gpus.bytes) / 1000
    return run.having("sampler.memory_fraction", share)
