"""Checks before a run has a folder and its weights are loaded, which takes minutes for a large model:
a typo must not cost a run that fails after its start."""

import contextlib
import logging
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from tepo.common.errors import UserError
from tepo.common.registry import untested
from tepo.common.system import unsupported
from tepo.common.text import counted, spelt
from tepo.config.own_files import GYM, is_own
from tepo.config.run_config import DataConfig, ModelConfig, RunConfig
from tepo.objectives.check import check_runs
from tepo.policy.model.kernel_attention import flash4_hindrance
from tepo.policy.model.shapes import check_length, positions_of
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.data_reader import read_data
from tepo.problems.findings import SECONDS, Findings, find, other_forms
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.problem import Problem
from tepo.problems.rewards.own_rewards import check_rewards
from tepo.problems.sources import check_source
from tepo.problems.training_sets import check_training_set, split_off
from tepo.training.distributed import process_group
from tepo.training.metrics.trackers import check_trackers
from tepo.training.resources.disk import GB, run_disk
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus
from tepo.training.resources.remedies import NONE, changes, obstacle
from tepo.training.run import Run

_MOST = 1_000_000  # responses of a step, a hundred times those of the largest runs that were published


def check_settings(run: Run) -> None:
    """Raise UserError for keys and values of the objective, the adapters, the tasks, the validation or the grader that
    do not exist or cannot be, for rewards of a user's own that cannot be called, and for responses longer than the
    model."""
    config, model = run.config, run.config.model
    check_length(model.path, config.train.max_new_tokens + 1, positions_of(model.path))
    objective = run.objective
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
    check_columns(config.data)
    check_rewards(config.data.reward, GraderOptions.of_training(config.grader), config.data.columns)
    if config.data.kind == "procedural":
        from tepo.problems.procedural.generator import check_tasks

        check_tasks(config.data.tasks, "train")
    if config.data.kind == "procedural" and config.data.held_out:
        fix = "leave it out: generated problems have a validation split"
        where = f"data.held_out={config.data.held_out}"
        raise UserError("nothing to hold out of generated problems", where=where, fix=fix)
    if config.train.keep_best and not config.train.validate_every:
        fix = "train.validate_every=N measures after every N steps"
        raise UserError("validation chooses the best weights, and it is off", where="train.keep_best=true", fix=fix)
    if config.train.validate_every:
        check_validation_problems(config)


def check_columns(data: DataConfig) -> None:
    """Raise UserError for columns that no reward is given, and for rows without answers where the grader needs some."""
    name, columns = data.problems or "", f"data.columns=[{','.join(data.columns)}]"
    if data.columns and (data.kind != "problems" or not is_own("data", name) or name.startswith(GYM)):
        raise UserError("only problems of your own have columns", where=columns, fix="leave it out, or set data=FILE")
    if data.columns and not any(reward.own for reward in data.reward.values()):
        raise UserError("no reward is given these columns", where=columns, fix="data.reward=FILE.py, or leave it out")
    if data.columns and not all(problem.answer for problem in read_data(name, data.fields, data.columns).problems):
        if not all(reward.own for reward in data.reward.values()):
            fix = "rewards of your own alone, or data.fields.answer=COLUMN"
            raise UserError("the rows have no answers that the grader could compare with", where=name, fix=fix)
        if data.held_out:
            fix = "leave it out, or data.fields.answer=COLUMN"
            what = "validation compares with answers, and the rows have none"
            raise UserError(what, where=f"data.held_out={data.held_out}", fix=fix)


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
    read = read_data(name, data.fields, data.columns)
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


def check_machine(run: Run) -> None:
    """Raise UserError for what this machine lacks and the run would come to need: Linux, packages, servers, trackers,
    problems, ranks that the engine can use, room for its checkpoints on the store's disk. Says which versions were not
    tested, and which golds cannot be read."""
    if why := unsupported():
        raise UserError(why)
    config, folder = run.config, run.folder.path
    check_backends(run)
    check_trackers(config)
    if config.data.kind == "problems":
        check_training_set(config.data.problems or "")
    if process_group.rank() == 0:
        for sentence in [*untested(run.engine.packages), *untested(run.sampler.packages), check_golds(config)]:
            if sentence:
                logging.getLogger(__name__).warning("%s", spelt(sentence))
        existing_path = next(path for path in (folder, *folder.parents) if path.exists())
        disk = shutil.disk_usage(existing_path)
        if existing_path.is_dir() and disk.total:  # else no folder can be made there (/proc), which who makes it says
            check_disk(run, disk.free, kept=len(list(folder.glob("checkpoints/step_*"))))


def check_benchmarks(names: Sequence[str]) -> None:
    """Raise UserError for a benchmark whose problems nothing here could read."""
    for benchmark in map(load_benchmark, names):
        if benchmark.dataset:
            check_source(benchmark.dataset, benchmark.name)


def check_backends(run: Run) -> None:
    """Raise UserError for ranks or settings that engine or sampler cannot work with, or where what they run on is
    missing."""
    config = run.config
    for backend in (run.engine, run.sampler):
        backend.check_settings(config, process_group.world_size())
        backend.check_available(config)
    if "flash4" in config.engine.kernels:
        on_gpu = config.engine.device != "cpu" and torch.cuda.is_available()
        hindrance = flash4_hindrance(torch.cuda.get_device_capability() if on_gpu else None)
        if config.model.dtype == "float32":
            hindrance = "flash-attn-4 does not work in float32", "model.dtype=bfloat16"
        if hindrance:
            raise UserError(hindrance[0], where="engine.kernels=[flash4]", fix=hindrance[1])


def most_ranks(run: Run, most: int) -> int:
    """The largest number of ranks up to `most` that engine and sampler can share the run over, 1 at least."""
    for ranks in range(most, 1, -1):
        with contextlib.suppress(UserError):
            run.check_ranks(ranks)
            return ranks
    return 1


def check_fit(run: Run, gpus: Gpus, visible: int) -> None:
    """Raise UserError where by the plan the run does not fit on its GPUs, which would be said minutes later by an error
    of CUDA's: with the ranks that it would fit on where one process was started and sees several GPUs, else with
    overrides. The run leaves nothing open."""
    if not (problem := obstacle(run, gpus)):
        return
    path, asked = run.config.model.path, run.asked or run
    place = f"{path}, {counted(gpus.ranks, 'GPU')}"
    ranks = most_ranks(asked, visible) if gpus.ranks == 1 else 1
    if ranks > 1:
        several = replace(gpus, ranks=ranks, node_ranks=ranks, taken=0.0)
        filled, _ = fill(asked, several)
        if not obstacle(filled, several):
            what = f"one process was started, on whose GPU the run does not fit by the plan; on {ranks} it would"
            fix = f"torchrun --nproc-per-node {ranks} --no-python tepo train … starts a rank for each"
            raise UserError(what, where=f"{path}, {visible} GPUs visible", fix=fix)
    what = f"the run does not fit by the plan: {problem}"
    words = changes(asked, lambda other: gpus)
    fix = NONE if words is None else f"it would with {' '.join(words)}"
    if gpus.taken:
        what += f"; other processes hold {gpus.taken / GIB:.1f} GiB"
        fix = f"end them, or choose another GPU with CUDA_VISIBLE_DEVICES; {fix}"
    raise UserError(what, where=place, fix=f"{fix}; sampler.memory_fraction=0.3, say, overrules the plan")


def check_disk(run: Run, free: float, kept: int = 0) -> None:
    """Raise UserError where the disk (free: bytes) does not hold the checkpoints that a run keeps and the one that it
    writes beside them. kept: those that are there. Nothing is said of a model whose shape is not known here."""
    try:
        disk = run_disk(run)
    except UserError:
        return
    needed = max(disk.checkpoints - kept, 1) * disk.checkpoint
    if needed > free:
        what = f"the disk has {free / GB:.3g} GB free, checkpoints take {needed / GB:.3g}"
        fix = "make room, or choose another disk with --store DIR"
        raise UserError(what, where=f"store {run.config.store}", fix=fix)
