"""Opens a run from its configuration: policy, sampler, engine, grader, objective, prompts, rollouts."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from tepo.common.errors import RunFailed, UserError
from tepo.common.gpu_driver import check_driver
from tepo.common.text import spelt
from tepo.config.run_config import RunConfig
from tepo.evaluation.responses import Tools
from tepo.objectives import Objective
from tepo.policy.kernel_check import check_kernels
from tepo.policy.model.allocator import grow_segments
from tepo.policy.model.load_policy import Policy, load_policy, load_tokenizer
from tepo.policy.model.lora import add_adapters, base_revision, load_adapters, save_adapters
from tepo.policy.model.model_location import load_config, resolve
from tepo.policy.model.packed_attention import choose_kernels
from tepo.policy.model.shapes import KNOWN, Shape
from tepo.policy.model.weight_check import check_weights
from tepo.problems.grader import Grader, GraderOptions
from tepo.problems.rewards.own_rewards import OwnRewards, try_out
from tepo.sampling.embedded.decoder import longest
from tepo.sampling.gap import MEAN, GapAlarm, ask, default_bound
from tepo.sampling.sampler import Sampler
from tepo.store.checkpoint_files import ADAPTER, TensorFile
from tepo.store.run_folder import RunFolder
from tepo.training.checkpoints.model_files import model_files, write_beside_weights
from tepo.training.checkpoints.saver import Saver
from tepo.training.distributed import process_group
from tepo.training.distributed.comm import Comm
from tepo.training.engine import optimizer_state
from tepo.training.engine.engine import Engine
from tepo.training.metrics.metrics_log import MetricsLog
from tepo.training.preflight import check_fit, check_machine, check_settings, check_teacher
from tepo.training.resources.gpu_cards import CARDS
from tepo.training.resources.layout import fill, is_open, with_share
from tepo.training.resources.memory import Gpus, held_by_others
from tepo.training.rollout.collector import Collector
from tepo.training.rollout.prefetch import BehaviorWeights, PrefetchedRollouts
from tepo.training.rollout.prompt_stream import PromptStream
from tepo.training.rollout.rollout_source import Rollouts
from tepo.training.rollout.run_progress import Progress, resume, write_pending
from tepo.training.run import Run
from tepo.training.update import Updater
from tepo.training.validation import Validation
from tepo.training.value_tracker import ValueTracker

_TRIED = 4  # problems on which rewards of a user's own are tried out


@dataclass(frozen=True)
class PreparedRun:
    """A run that may be trained here, with every setting that it leaves open chosen for this machine; reasons: why, by
    setting. prompts: of a run that begins."""

    run: Run
    reasons: Mapping[str, str]
    prompts: PromptStream | None

    def check_unchanged(self) -> None:
        """Raise RunFailed when what was loaded is no longer what the run's id says: nothing is trained on it."""
        asked, folder = self.run.asked or self.run, self.run.folder
        if RunFolder.of(asked.config).path != folder.path:
            what = "the file of problems or the model folder changed while the run was starting"
            fix = "the same command again trains what is there now, as a run of its own"
            raise RunFailed(what, where=str(folder.path), fix=fix)


def prepare(run: Run) -> PreparedRun:
    """Check what can be checked before anything is loaded, and choose what the run leaves open.

    Raises UserError for settings that cannot be, or that this machine cannot meet."""
    check_settings(run)
    run, reasons = laid_out(run)
    config, folder = run.config, run.folder
    if run.sampler.segments_may_grow(config):
        grow_segments()
    check_machine(run)
    if (gpus := planned_gpus(config)).bytes and config.sampler.memory_fraction is None:
        check_fit(with_sizes(run), gpus, torch.cuda.device_count())
    if not folder.started():  # a run that is refused leaves no folder
        for model_config in config.model.loaded:
            check_weights(model_config.path, model_config.revision, model_config.trust_remote_code)
    pick_device(config.engine.device)
    limit_threads(run)
    model, prompts = config.model, None
    if not folder.checkpoints():  # else they were checked, and the base may be gone
        tokenizer = load_tokenizer(model.path, model.revision, model.trust_remote_code)
        check_teacher(model, tokenizer)
        prompts = PromptStream(config, tokenizer)
    return PreparedRun(run, reasons, prompts)


def laid_out(run: Run) -> tuple[Run, dict[str, str]]:
    """The run with the layout that it leaves open chosen for its GPUs, and why, by setting."""
    if not is_open(run):
        return run, {}
    gpus = planned_gpus(run.config)
    filled, reasons = fill(with_sizes(run), gpus)
    if gpus.bytes and gpus.card is None:
        reasons["card"] = f"{torch.cuda.get_device_name()}: of unknown speed, so an H100's is assumed"
    return filled, reasons


def planned_gpus(config: RunConfig) -> Gpus:
    """GPUs that the run is planned for. Several ranks must choose alike before they meet, and go by their cards, not by
    what is free."""
    gpus = gpus_here(pick_device(config.engine.device))
    return replace(gpus, taken=0.0) if gpus.ranks > 1 else gpus


@dataclass
class TrainState:
    """Everything that the loop works with. progress: after the last finished step."""

    run: Run
    policy: Policy
    engine: Engine
    sampler: Sampler
    collector: Collector
    updater: Updater
    saver: Saver
    device: torch.device
    rollouts: Rollouts
    validation: Validation | None
    progress: Progress
    log: MetricsLog | None = None  # of the rank that writes, once training begins

    @property
    def config(self) -> RunConfig:
        """Its configuration, which leaves nothing open."""
        return self.run.config

    @property
    def first(self) -> bool:
        """True on the rank that writes."""
        return self.engine.comm is None or self.engine.comm.rank == 0

    def save(self, *, over: bool) -> None:
        """Begin a checkpoint of the weights as they are; it is there at the latest when the run is closed. over: they
        stay as they are until then."""
        self.saver.save(self.progress.step, self.progress.saved, partial(self._files, self.progress), over=over)

    def save_unsaved(self) -> None:
        """Begin the last checkpoint, where the newest one is not of the last finished step."""
        if self.progress.step != self.saver.step:
            self.save(over=True)

    def _files(self, progress: Progress, folder: Path) -> Iterator[TensorFile]:
        """Files of a checkpoint that this rank writes: model and tokenizer for `from_pretrained`, and what resuming
        needs, which is the engine's state and the rollouts that wait for their step. Small ones are written at once."""
        weights = self.engine.weights()  # collective: every rank reads all of them
        comm, model = self.engine.comm, self.config.model
        rank, ranks = (0, 1) if comm is None else (comm.rank, comm.world_size)
        if rank == 0:
            write_beside_weights(self.policy, folder)
            if model.lora_rank:
                save_adapters(self.policy.model, folder / ADAPTER, resolve(model.path), model.revision)
            write_pending(folder, progress.pending)
            if self.updater.tracker:
                self.updater.tracker.write(folder)
        yield from model_files(self.policy, weights, folder, rank, ranks)
        yield from optimizer_state.files(self.engine.state(), rank)

    def load_weights(self, *, opened: bool = False) -> None:
        """Give the weights to a sampler that keeps its own copy, and tell the gap alarm; one outside of the run gets
        them from the first rank. opened: the sampler was just made of these weights, unless it is outside of the run,
        where it may hold those of another."""
        config = self.config
        if self.run.shares_weights:
            return
        weights, remote = self.engine.weights(), self.run.sampler.remote
        if remote or not opened:
            if self.first or not remote:
                self.sampler.sync(weights)
            else:
                for _ in weights.values():  # what is gathered takes every rank
                    pass
            if self.engine.comm is not None:
                self.engine.comm.barrier()
        if not isinstance(weights, dict):  # under ZeRO-3 the alarm has no use for them
            return
        answers = None
        if config.model.dtype != "float32" and (self.first or not remote):  # in float32 the gap alone says it
            engines = len(config.sampler.servers) if remote else 1
            answers = ask(self.sampler, self.collector.stream.first, config.train.max_new_tokens, engines)
        self.updater.alarm.synced(weights, answers)


def limit_threads(run: Run) -> None:
    """One thread a process where all is embedded: two on a busy machine are many times slower (docs/scales.md). Beside
    a GPU, an optimiser in main memory gets this rank's share of the cores; a launcher leaves each rank one thread."""
    if run.config.engine.offload and torch.cuda.is_available():
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // process_group.local_world_size()))
    elif run.shares_weights:
        torch.set_num_threads(1)


@contextlib.contextmanager
def open_state(run: Run, prompts: PromptStream | None = None) -> Iterator[TrainState]:
    """Open a run at the newest checkpoint that it can go on from, and close it at the end. prompts: where they are made
    already. Raises UserError where the GPU has too little memory left for the sampler."""
    config, folder = run.config, run.folder
    torch.manual_seed(config.seed)
    device = pick_device(config.engine.device)
    latest, remarks = folder.to_resume()
    if process_group.rank() == 0:
        sys.stderr.writelines(f"{spelt(remark)}\n" for remark in remarks)
    source = str(latest or config.model.path)
    objective, gpus, roomy = run.objective, gpus_here(device), run
    if gpus.bytes and not run.sampler.shares_weights and config.sampler.memory_fraction is None:
        roomy = with_share(replace(run, sizes=shape_at(config, source)), gpus)
    with run.engine.loading(config, source, device):
        policy = open_policy(config, latest, device)
    check_kernels(config.engine.kernels, policy.model.config.get_text_config(), device.type)
    if config.model.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        policy.model.train()  # transformers checkpoints in training mode alone; the supported models have no dropout
    with contextlib.ExitStack() as stack:
        engine = run.engine.open(config, policy)
        check_same_run(folder, latest, config, engine.comm)
        if latest is not None:
            engine.load(latest)
        sampler = stack.enter_context(contextlib.closing(make_sampler(roomy, policy, resolve(source), folder.exchange)))
        limit_threads(run)  # vLLM leaves one to all of the process (gpu_worker.py: set_torch_threads_for_runtime)

        @stack.push
        def close_engine(error: object, *_: object) -> None:
            """Before the sampler, which may end the process group. After an error a GPU may wait for a rank that is
            gone, and this for the GPU."""
            if error is None or process_group.world_size() == 1:
                engine.close()

        grader = stack.enter_context(Grader(GraderOptions.of_training(config.grader)))
        stream = prompts or PromptStream(config, policy.tokenizer)
        sizes = policy.model.config
        stream.check_model(longest(sizes), sizes.get_text_config().vocab_size)
        dtype, temperature = config.model.dtype, config.train.temperature
        bound = config.sampler.gap_bound or default_bound(dtype)
        alarm = GapAlarm(bound, temperature=temperature, dtypes=(dtype, dtype), comm=engine.comm, fresh=sampler.score)
        if latest is not None:
            alarm.first = next(iter(folder.metrics()), {}).get(MEAN)
        frozen = initial_policy(config, objective, policy), teacher_policy(config, objective, policy)
        tracker = ValueTracker.read(latest) if objective.needs.values else None
        updater = Updater(config, objective, engine, alarm, *frozen, tracker)
        own_rewards = None
        if config.data.reward:
            own_rewards = stack.enter_context(OwnRewards(config.data.reward, grader, config.data.columns))
        if own_rewards and latest is None:
            try_out(own_rewards, [prompt.problem for prompt in stream.take(0, _TRIED)])
        every = objective.every_group
        collector = Collector(config, stream, sampler, grader, engine.comm, own=own_rewards, every_group=every)
        tools = Tools(sampler, policy.tokenizer, grader)
        validation = Validation(config, tools, engine.comm) if config.train.validate_every else None
        progress = resume(folder, latest, stream, device)
        step, on_cpu = progress.step if latest else None, device.type == "cpu"
        saver = stack.enter_context(Saver(folder, engine.comm, step, on_cpu=on_cpu))
        rollouts = open_rollouts(run, collector, updater, device, progress, policy)
        state = TrainState(
            run, policy, engine, sampler, collector, updater, saver, device, rollouts, validation, progress
        )
        state.load_weights(opened=True)
        yield state


def open_rollouts(
    run: Run, collector: Collector, updater: Updater, device: torch.device, start: Progress, policy: Policy
) -> Rollouts:
    """Rollouts in turn with the updates; beside them with stale rollouts, and a sampler that does not share this rank's
    device and its interpreter. All ranks call it."""
    if not run.config.train.staleness or not run.sampler.remote:
        return Rollouts(collector, updater, device, start)
    beside = replace(collector, comm=process_group.beside(collector.comm))
    return PrefetchedRollouts(collector, updater, device, start, beside, BehaviorWeights(policy.model))


def gpus_here(device: torch.device) -> Gpus:
    """GPUs of this run, of the size of this rank's, with what other processes hold of it; without bytes on a CPU."""
    local = process_group.local_world_size()
    world = max(process_group.world_size(), local), local  # the first is 1 in a process that measures with all GPUs
    if device.type != "cuda":
        return Gpus(*world)
    free, size = torch.cuda.mem_get_info(device)
    taken_bytes = held_by_others(size, free, torch.cuda.memory_reserved(device))
    host = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return Gpus(*world, float(size), taken_bytes, CARDS.get(torch.cuda.get_device_name(device)), host)


def with_sizes(run: Run) -> Run:
    """The run with the sizes of its model, which are asked of the hub where nothing here has them."""
    path = run.config.model.path
    return run if path in KNOWN else replace(run, sizes=shape_at(run.config, path))


def shape_at(config: RunConfig, source: str) -> Shape:
    """The sizes of a model, from its configuration alone. Raises UserError where it is not there."""
    return Shape.of_config(load_config(source, config.model.revision, config.model.trust_remote_code))


def check_same_run(run: RunFolder, latest: Path | None, config: RunConfig, comm: Comm | None) -> None:
    """Raises RunFailed where another rank read other files than this one, so that it would train another run or go on
    from another checkpoint, or chose another layout, as beside another kind of GPU."""
    engine = config.engine
    layout = config.sampler.tensor_parallel, engine.micro_batch_tokens, engine.zero_stage, engine.offload
    own_name = f"{run.path.name} at {latest.name}" if latest else run.path.name
    own_name += f", layout {'/'.join(map(str, layout))}"
    names = [own_name] if comm is None else comm.all_gather_object(own_name)
    if len(set(names)) > 1:
        listing = ", ".join(f"rank {rank}: run {name}" for rank, name in enumerate(names))
        fix = "give every machine the same TEPO_PATH, problems, model and kind of GPU, and start again"
        raise RunFailed(f"the ranks are not of one run ({listing})", where="a run over several ranks", fix=fix)


def open_policy(config: RunConfig, latest: Path | None, device: torch.device) -> Policy:
    """The policy to train: that of the newest checkpoint, else the untrained one. With LoRA always the untrained one,
    at the commit that the checkpoint names, with adapters."""
    model = config.model
    if not model.lora_rank:
        return _load(config, str(latest or model.path), None if latest else model.revision, device)
    saved = latest / ADAPTER if latest else None
    policy = _load(config, model.path, base_revision(saved) if saved else model.revision, device)
    add_adapters(policy.model, model.lora_rank, model.lora_alpha, config.seed)
    if saved:
        load_adapters(policy.model, saved)
    return policy


def initial_policy(config: RunConfig, objective: Objective, policy: Policy) -> torch.nn.Module | None:
    """The policy before training, frozen, where the objective is anchored on it. With LoRA the trained model, whose
    adapters are off where it stands for the initial policy."""
    model = config.model
    if not objective.needs.initial_policy:
        return None
    if model.lora_rank:
        return policy.model
    return _load(config, model.path, model.revision, policy.model.device).model.requires_grad_(False)


def teacher_policy(config: RunConfig, objective: Objective, policy: Policy) -> torch.nn.Module | None:
    """The teacher, frozen, where the objective reads its log-probs. Raises UserError where it has fewer tokens."""
    if not objective.needs.teacher_logprobs:
        return None
    teacher_config = config.model.loaded[-1]
    teacher = _load(config, teacher_config.path, teacher_config.revision, policy.model.device).model
    rows, policy_rows = (model.config.get_text_config().vocab_size for model in (teacher, policy.model))
    if rows < policy_rows:
        raise UserError(
            f"the teacher has {rows} tokens and the policy {policy_rows}", where=f"model.teacher={teacher_config.path}"
        )
    return teacher.requires_grad_(False)


def _load(config: RunConfig, source: str, revision: str | None, device: torch.device) -> Policy:
    model = config.model
    policy = load_policy(
        source, dtype=model.dtype, device=str(device), revision=revision, trust_remote_code=model.trust_remote_code
    )
    choose_kernels(policy.model, config.engine.kernels)
    return policy


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one. Raises UserError when CUDA is asked for and missing, and for a GPU that torch
    cannot use."""
    if name != "cpu":
        check_driver()
    if name == "cuda" and not torch.cuda.is_available():
        fix = "engine.device=cpu, or see `tepo doctor`"
        raise UserError("no CUDA device here", where="engine.device=cuda", fix=fix)
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    rank, gpus = process_group.local_rank(), torch.cuda.device_count()
    if rank >= gpus:
        what, fix = f"local rank {rank} has no GPU: there are {gpus}", f"start {gpus} processes on each node"
        raise UserError(what, where="the launcher's processes per node", fix=fix)
    return torch.device("cuda", rank)


def make_sampler(run: Run, policy: Policy, source: str, exchange: Path) -> Sampler:
    """The sampler a run asks for, holding the policy's weights. `source`: the folder or hub id they were
    loaded from. `exchange`: a folder that sampling servers see too."""
    config = run.config
    if run.sampler.shares_weights and not run.shares_weights:  # the engine may shard the trainer's model
        policy = _load(config, source, config.model.revision, policy.model.device)
    return run.sampler.open(config, policy, source, exchange)
