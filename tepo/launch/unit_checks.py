"""Checks of a study before its first run starts: packages, GPUs, servers, problems and disk, which its runs share.
Without them a study of sixteen runs would say the same sixteen times, each after the start of its processes."""

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tepo.common.errors import UserError
from tepo.common.gpu_driver import check_driver
from tepo.common.text import counted, spelt
from tepo.launch.sbatch import SlurmOptions
from tepo.policy.model.model_location import resolve
from tepo.problems.training_sets import check_training_set
from tepo.studies.plan import Unit
from tepo.training.metrics.trackers import check_trackers
from tepo.training.preflight import check_benchmarks, check_golds, check_settings, most_ranks
from tepo.training.resources.disk import GB, run_disk
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.layout import fill
from tepo.training.resources.memory import Gpus, memory
from tepo.training.run import Run


def check_rows(todo: Sequence[Unit]) -> None:
    """Raises UserError naming the row whose objective or tasks have a setting that does not exist, or that has code
    executed which is not the caller's: one message, not one failed run after another."""
    for unit in todo:
        unit.as_typed()
    for unit in _trained_rows(todo):
        with _named(unit):
            check_settings(Run(unit.config))


def slots_of(todo: Sequence[Unit], asked: int | None, visible: int) -> tuple[int, int, str]:
    """Runs side by side, `asked` or as many as the visible GPUs take, GPUs of each where nobody says how many, and a
    sentence on both. A run over several ranks takes an equal share of the GPUs, as many as it can use, and one on a
    single device takes one. Raises UserError for more runs side by side than GPUs, and for a GPU that torch cannot
    use."""
    taking, jobs = [Run(unit.config) for unit in todo if unit.takes_gpu], min(asked or 1, len(todo))
    if not taking:
        return jobs, 0, "the runs take a core each, and no GPU; --gpus 1 gives each of them one" if visible else ""
    check_driver()
    if not visible:
        return jobs, 0, ""
    if jobs > visible:
        what = f"{counted(jobs, 'run')} side by side, {counted(visible, 'GPU')} visible here"
        raise UserError(what, where=f"--jobs {jobs}", fix=f"--jobs {visible}, or --gpus 0 for the CPU")
    each = min(most_ranks(run, visible // jobs) for run in taking)
    if asked is None:
        jobs = min(visible // each, len(todo))
    sentence = f"{counted(jobs, 'run')} side by side on {counted(each, 'GPU')} each, of {visible} that are visible"
    return jobs, each, f"{sentence}; --jobs N chooses" if visible > 1 else ""


def check_study(todo: Sequence[Unit], jobs: int, gpus: int, slurm: SlurmOptions | None) -> None:
    """Raises UserError, naming the row where only some are concerned, for what the runs to do would come to lack: as
    `jobs` processes with `gpus` GPUs each on this machine, or as jobs of Slurm. The packages, GPUs and servers of
    Slurm's nodes are theirs, and each job asks for them there."""
    import torch

    from tepo.policy.model.weight_check import check_weights

    check_rows(todo)
    visible, device_list = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    jobs = min(jobs, len(todo))
    if slurm is None and gpus:
        check_driver()
    if slurm is None and jobs * gpus > visible:
        request = f"--jobs {jobs} with --gpus {gpus}" if jobs > 1 else f"--gpus {gpus}"
        where = request if device_list is None else f"{request}, CUDA_VISIBLE_DEVICES={device_list}"
        elsewhere = "run where the GPUs are, or let Slurm place the runs (--launcher slurm)"
        what = f"{counted(jobs * gpus, 'GPU')} asked for, {visible} visible here"
        raise UserError(what, where=where, fix="lower --jobs or --gpus" if visible else elsewhere)
    ranks = max(gpus, 1) if slurm is None else slurm.nodes * max(slurm.gpus, 1)
    sentences = set()
    for unit in _trained_rows(todo):
        with _named(unit):
            run = Run(unit.config)
            sentences.add(check_golds(unit.config))
            if slurm is None and not gpus:
                _check_cpu(run)
            run.check_ranks(ranks)
            if slurm is None:
                run.engine.check_available(run.config)
                run.sampler.check_available(run.config)
                check_trackers(unit.config)
            if unit.config.data.kind == "problems":
                check_training_set(unit.config.data.problems or "")
    for sentence in sorted(filter(None, sentences)):
        logging.getLogger(__name__).warning("%s", spelt(sentence))
    for model in {model.path: model for unit in todo for model in unit.config.model.loaded}.values():
        if Path(resolve(model.path)).is_dir():  # a base on record can be planned without its files
            check_weights(model.path, model.revision, model.trust_remote_code)
    check_benchmarks(list(dict.fromkeys(name for unit in todo for name in unit.missing_benchmarks())))
    _check_disk(todo, jobs if slurm is None else slurm.parallel)


def _trained_rows(todo: Sequence[Unit]) -> list[Unit]:
    """A unit of each row that is trained."""
    return list({(unit.label, unit.model): unit for unit in todo if unit.trains}.values())


@contextmanager
def _named(unit: Unit) -> Iterator[None]:
    """Put the name of the row in front of where an error is."""
    try:
        yield
    except UserError as error:
        where = f"row {unit.label!r}" + (f", {error.where}" if error.where else "")
        raise UserError(error.what, where=where, fix=error.fix, exit_code=error.exit_code) from None


def _check_cpu(run: Run) -> None:
    """Raises UserError where a run without a GPU asks for one, or main memory does not hold weights, gradients and
    optimiser. Nothing is said of a model whose shape is not known here."""
    if run.config.engine.device == "cuda":
        raise UserError("no GPU for the run", where="engine.device=cuda", fix="--gpus 1 where there is one")
    try:
        _ = run.shape
    except UserError:
        return
    parts = memory(fill(run, Gpus())[0])
    needed = parts.weights + parts.gradients + parts.optimiser
    host = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if needed > host:
        what = f"no GPU here, and {needed / GIB:.0f} GiB of weights, gradients and optimiser for {host / GIB:.0f} GiB"
        fix = "run where the GPUs are (--gpus N, --launcher slurm), or --scale laptop"
        raise UserError(f"{what} of main memory", where=run.config.model.path, fix=fix)


def _check_disk(todo: Sequence[Unit], at_once: int) -> None:
    """Raises UserError where the disk does not hold the final weights of all runs and what `at_once` of them need
    beside these while they train. Nothing is counted of a model whose shape is not known here."""
    kept_bytes, training = 0.0, []
    for unit in todo:
        try:
            disk = run_disk(Run(unit.config))
        except UserError:
            continue
        if not unit.trained():
            saved = len(unit.folder.checkpoints())
            stay = 0.0 if saved else disk.weights
            kept_bytes += stay
            training.append(max(disk.checkpoints - saved, 0) * disk.checkpoint - stay)
    needed = kept_bytes + sum(sorted(training)[-at_once:])
    store = todo[0].store
    place = next(path for path in (store, *store.absolute().parents) if path.exists())
    usage = shutil.disk_usage(place)
    if needed > usage.free and place.is_dir() and usage.total:  # else no folder can be made there, which a run says
        what = f"the disk has {usage.free / GB:.3g} GB free, the study's runs take {needed / GB:.3g}"
        fix = "make room, choose another disk with --store DIR, or run fewer side by side (--jobs)"
        raise UserError(what, where=f"--store {store}", fix=fix)
