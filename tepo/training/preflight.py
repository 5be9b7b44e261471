"""Checks before a run has a folder and its weights are loaded, which takes minutes for a large model:
a typo must not cost a run that fails after its start."""

import contextlib
import logging
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from tepo.common.errors import UserError
from tepo.common.registry import untested
from tepo.common.system import unsupported
from tepo.common.text import counted, spelt
from tepo.config.own_files import is_own
from tepo.config.run_config import ModelConfig, RunConfig
from tepo.objectives import load_objective
from tepo.objectives.check import check_runs
from tepo.policy.model.kernel_attention import flash4_hindrance
from tepo.policy.model.shapes import Shape, check_length, positions_of
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.data_reader import read_data
from tepo.problems.findings import SECONDS, Findings, find, other_forms
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.problem import Problem
from tepo.problems.rewards.own_rewards import check_rewards
from tepo.problems.sources import check_source
from tepo.problems.training_sets import check_training_set, split_off
from tepo.sampling.backends import sampler_backend
from tepo.training.distributed import process_group
from tepo.training.engine.backends import engine_backend
from tepo.training.metrics.trackers import check_trackers
from tepo.training.resources.layout import fill, lacking
from tepo.training.resources.memory import Gpus, memory
from tepo.training.resources.node import GB, run_disk

_MOST = 1_000_000  # responses of a step, a hundred times those of the largest runs that were published


def check_settings(config: RunConfig) -> None:
    """Raise UserError for keys and values of the objective, the adapters, the tasks, the validation or the grader that
    do not exist or cannot be, for rewards of a user's own that cannot be called, and for responses longer than the
    model."""
    check_length(config.model.path, config.train.max_new_tokens + 1, positions_of(config.model.path))
    objective, model = load_objective(config.objective), config.model
    check_runs(objective)
    if objective.needs.teacher_logprobs != bool(model.teacher):
        what, fix = f"objective {objective.name} reads no logp_teacher", "leave it out"
        if not model.teacher:
            what, fix = f"objective {objective.name} reads logp_teacher", "name the teacher: model.teacher=FOLDER"
        raise UserError(what, where=f"model.teacher={model.teacher or 'null'}", fix=fix)
    prompts, samples = config.train.prompts_per_step, config.train.samples_per_prompt
    if prompts * samples > _MOST:
        where = f"train.prompts_per_step={prompts} train.samples_per_prompt={samples}"
        raise UserError(f"{prompts * samples:,} responses a step are too many", where=where, fix=f"at most {_MOST:,}")
    if config.train.samples_per_prompt == 1 and not objective.every_group:
        what = f"a group of one has no advantage with objective {objective.name}"
        raise UserError(what, where="train.samples_per_prompt=1", fix="at least 2")
    if not model.lora_rank and model.lora_alpha != ModelConfig.lora_alpha:
        fix = "set model.lora_rank, or leave model.lora_alpha out"
        raise UserError("no adapters to scale", where=f"model.lora_alpha={model.lora_alpha:g}", fix=fix)
    check_rewards(config.data.reward, GraderOptions.of_training(config.grader))
    if config.data.kind == "procedural":
        from tepo.problems.procedural.generator import check_tasks

        check_tasks(config.data.tasks, "train")
    if config.data.kind == "procedural" and config.data.held_out:
        fix = "leave it out: generated problems have a validation split"
        where = f"data.held_out={config.data.held_out}"
        raise UserError("nothing to hold out of generated problems", where=where, fix=fix)
    if config.train.keep_best and not config.train.validate_every:
        fix = "train.validate_every=N measures after every N steps"
        raise UserError("without validation no weights are the best", where="train.keep_best=true", fix=fix)
    if config.train.validate_every:
        check_validation_problems(config)


def check_teacher(model: ModelConfig, tokenizer: Any) -> None:
    """Raise UserError where a token of the policy's is another one, or none, to its teacher."""
    from tepo.policy.model.load_policy import load_tokenizer  # and with it transformers, for no plan

    for teacher in model.loaded[1:]:
        teacher_vocab = load_tokenizer(teacher.path, teacher.revision, teacher.trust_remote_code).get_vocab()
        if other := [token for token, number in tokenizer.get_vocab().items() if teacher_vocab.get(token) != number]:
            what = f"the teacher has another tokenizer: {counted(len(other), 'token')} differ, {other[0]!r} among them"
            raise UserError(what, where=f"model.teacher={teacher.path}", fix="a teacher of the same family of models")


def check_validation_problems(config: RunConfig) -> None:
    """Raise UserError where there are none."""
    data = config.data
    if data.kind == "procedural":
        if not any(load_benchmark(name).procedural for name in data.benchmarks):
            fix = "name generated benchmarks in data.benchmarks"
            raise UserError("no benchmark has validation problems", where=f"data={data.name}", fix=fix)
    elif not data.held_out:
        fix = "data.held_out=256 keeps so many problems from training"
        raise UserError("no problems to validate on", where=f"data={data.name}", fix=fix)


def check_golds(config: RunConfig) -> str:
    """A line on a user's own data: rows that are dropped, golds that are guessed or that no response can match, and
    problems that ask for another form of the answer; empty where there is nothing to say. The grader is not asked where
    it gives no reward. Raises UserError where it can read no gold, and where all problems would be held out."""
    data, name = config.data, config.data.problems or ""
    if data.kind != "problems" or not is_own("data", name):
        return ""
    read = read_data(name, data.fields)
    split_off(read.problems, data.held_out, name)
    sentences, how = read.losses(), f"`tepo data verify {shlex.quote(name)}` lists them"
    if not (data.reward and all(reward.own for reward in data.reward.values())):
        options = GraderOptions.of_training(config.grader)
        findings = _found(read.problems, options)
        if findings.useless:
            fix = f"{how}; data.reward=FILE.py judges without the grader"
            raise UserError(f"no reward would be given: {findings}", where=f"data.problems={name}", fix=fix)
        sentences += filter(None, (str(findings), other_forms(read.problems, options)))
    return f"{name}: {'. '.join(sentences)} ({how})" if sentences else ""


@lru_cache(maxsize=1)
def _found(problems: tuple[Problem, ...], options: GraderOptions) -> Findings:
    """Kept: a study asks for each of its rows."""
    with Grader(options) as grader:
        return find(problems, grader, SECONDS)


def check_machine(config: RunConfig, folder: Path) -> None:
    """Raise UserError for what this machine lacks and the run would come to need: Linux, packages, servers, trackers,
    problems, ranks that the engine can use, room for its checkpoints in `folder`'s disk. Says which versions were not
    tested, and which golds cannot be read."""
    if why := unsupported():
        raise UserError(why)
    check_backends(config)
    check_trackers(config)
    if config.data.kind == "problems":
        check_training_set(config.data.problems or "")
    if process_group.rank() == 0:
        engine, sampler = engine_backend(config.engine.kind), sampler_backend(config.sampler.kind)
        for sentence in [*untested(engine.packages), *untested(sampler.packages), check_golds(config)]:
            if sentence:
                logging.getLogger(__name__).warning("%s", spelt(sentence))
        existing_path = next(path for path in (folder, *folder.parents) if path.exists())
        disk = shutil.disk_usage(existing_path)
        if existing_path.is_dir() and disk.total:  # else no folder can be made there (/proc), which who makes it says
            check_disk(config, disk.free, kept=len(list(folder.glob("checkpoints/step_*"))))


def check_benchmarks(names: Sequence[str]) -> None:
    """Raise UserError for a benchmark whose problems nothing here could read."""
    for benchmark in map(load_benchmark, names):
        if benchmark.dataset:
            check_source(benchmark.dataset, benchmark.name)


def check_backends(config: RunConfig) -> None:
    """Raise UserError for ranks or settings that engine or sampler cannot work with, or where what they run on is
    missing."""
    for backend in (engine_backend(config.engine.kind), sampler_backend(config.sampler.kind)):
        backend.check_settings(config, process_group.world_size())
        backend.check_available(config)
    if "flash4" in config.engine.kernels:
        on_gpu = config.engine.device != "cpu" and torch.cuda.is_available()
        hindrance = flash4_hindrance(torch.cuda.get_device_capability() if on_gpu else None)
        if config.model.dtype == "float32":
            hindrance = "flash-attn-4 does not work in float32", "model.dtype=bfloat16"
        if hindrance:
            raise UserError(hindrance[0], where="engine.kernels=[flash4]", fix=hindrance[1])


def most_ranks(config: RunConfig, most: int) -> int:
    """The largest number of ranks up to `most` that engine and sampler can share the run over, 1 at least."""
    for ranks in range(most, 1, -1):
        with contextlib.suppress(UserError):
            for backend in (engine_backend(config.engine.kind), sampler_backend(config.sampler.kind)):
                backend.check_settings(config, ranks)
            return ranks
    return 1


def check_alone(config: RunConfig, shape: Shape, gpu: Gpus, visible: int) -> None:
    """Raise UserError where by the plan the run does not fit on one GPU, which one process takes, but on several that
    it sees, a rank each. A sampler.memory_fraction of the user's own overrules the plan."""
    ranks, reference = most_ranks(config, visible), load_objective(config.objective).needs.initial_policy

    def fits(ranks: int) -> bool:
        gpus = replace(gpu, ranks=ranks, node_ranks=ranks, taken=0.0)
        filled, _ = fill(config, shape, gpus, reference)
        needed = memory(filled, shape, gpus, reference=reference)
        return all(lacks <= 0 for lacks, _ in lacking(filled, shape, gpus, needed))

    if config.sampler.memory_fraction is None and not fits(1) and fits(ranks):
        what = f"one process was started, on whose GPU the run does not fit by the plan; on {ranks} it would"
        fix = f"torchrun --nproc-per-node {ranks} --no-python tepo train … starts a rank for each"
        raise UserError(what, where=f"{config.model.path}, {visible} GPUs visible", fix=fix)


def check_disk(config: RunConfig, free: float, kept: int = 0) -> None:
    """Raise UserError where the disk (free: bytes) does not hold the checkpoints that a run keeps and the one that it
    writes beside them. kept: those that are there. Nothing is said of a model whose shape is not known here."""
    try:
        disk = run_disk(config)
    except UserError:
        return
    needed = max(disk.checkpoints - kept, 1) * disk.checkpoint
    if needed > free:
        what = f"the disk has {free / GB:.3g} GB free, checkpoints take {needed / GB:.3g}"
        fix = "make room, or choose another disk with --store DIR"
        raise UserError(what, where=f"store {config.store}", fix=fix)
