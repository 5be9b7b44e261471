"""`tepo doctor`: what this machine has, what is missing and how to get it."""

import os
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from tepo.common.errors import UserError
from tepo.common.system import described, unsupported
from tepo.common.text import counted, install_line
from tepo_cli.cli_options import check_store_exists, store_folder

_PACKAGES = ("torch", "transformers", "hydra-core", "typer", "pandas", "math-verify", "antlr4-python3-runtime")
_EXTRAS = {"bitsandbytes": "bitsandbytes", "datasets": "hub", "peft": "lora"}
_EXTRAS |= {name: name for name in ("wandb", "tensorboard", "trackio")}
_PROGRAMS = {
    "sbatch": "Slurm dispatch: apt-get install slurm-wlm munge",
    "chromium": "page tests: apt-get install chromium chromium-driver",
    "g++": "DeepSpeed's optional kernels",
}
_TRITON = "Triton's kernels on a GPU: apt-get install gcc python3-dev"
_STORE = "Folder of runs, each of which is checked file by file (default: none)."
_SELFTEST = "Run each installed engine for real (about a minute), and the kernels of a GPU."
_LEFT_OUT = "(--no-selftest leaves this out)"


def doctor(
    store: Annotated[Path | None, typer.Option(parser=store_folder, metavar="DIR", help=_STORE)] = None,
    selftest: Annotated[bool, typer.Option(help=_SELFTEST)] = True,
) -> None:
    """Check this machine: versions, engines, GPUs, disk.

    Also says which scales fit, and what is missing and how to get it. --store looks for damaged runs. Then each
    installed engine trains two steps; on a GPU the attention and log-prob kernels are compared with torch. Exit code 1
    if one fails, a run is damaged, or tepo does not support the system.

    \b
    tepo doctor
    tepo doctor --selftest"""
    if store is not None:
        check_store_exists(store)
    print(f"{'system':24} {described()}")
    if why := unsupported():
        print(why)
        raise typer.Exit(1)
    checks = [*_packages(), *_machine(store or Path("runs"))]
    for what, state, _ in checks:
        print(f"{what:24} {state}")
    for what, _, fix in checks:
        if fix:
            print(f"{what}: {fix}")
    passed = store is None or _store_whole(store)
    if selftest:
        passed &= _engines_work()
        passed &= _kernels_work()
    else:
        print("GPU part: not run (--no-selftest)")
    if not passed:
        raise typer.Exit(1)


def _packages() -> Iterator[tuple[str, str, str]]:
    """Versions of packages and paths of programs, and how to get what is missing: (what, state, advice)."""
    from importlib.metadata import PackageNotFoundError, version

    from tepo.common.registry import untested
    from tepo.sampling.backends import sampler_backend, sampler_kinds
    from tepo.training.engine.backends import engine_backend, engine_kinds

    fixes = dict.fromkeys(_PACKAGES, install_line())
    engines = [sampler_backend(kind).packages for kind in sampler_kinds()]
    for packages in (*engines, *(engine_backend(kind).packages for kind in engine_kinds())):
        fixes |= packages
    fixes |= {package: install_line(extra) for package, extra in _EXTRAS.items()}
    for package, fix in fixes.items():
        try:
            yield package, version(package), "; ".join(untested({package: fix}))
        except PackageNotFoundError:
            yield package, "missing", fix
    header = Path(sysconfig.get_path("include")) / "Python.h"
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")  # in Triton's order
    tools = {program: (shutil.which(program), fix) for program, fix in _PROGRAMS.items()}
    tools |= {"C compiler": (compiler, _TRITON), "Python.h": (str(header) if header.is_file() else None, _TRITON)}
    for what, (path, fix) in tools.items():
        yield what, path or "missing", "" if path else fix


def _machine(store: Path) -> Iterator[tuple[str, str, str]]:
    """Hardware of the machine: (what, state, advice)."""
    import torch

    from tepo.common.gpu_driver import FIX, unusable
    from tepo.planning.fit import scales_here

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    existing = next(path for path in (store.absolute(), *store.absolute().parents) if path.exists())
    disk = shutil.disk_usage(existing)
    yield "cores", str(len(os.sched_getaffinity(0))), ""
    yield "memory", f"{memory / 2**30:.0f} GiB", ""
    yield f"disk at {existing}", f"{disk.free / 2**30:.0f} GiB free of {disk.total / 2**30:.0f}", ""
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        wrong = "not writable" if existing.is_dir() else f"{existing} is a file"
        yield f"store {store}", wrong, "choose another with --store DIR"
    if not torch.cuda.is_available():
        explanation = unusable()
        yield "GPUs", f"none: {explanation}" if explanation else "none", FIX if explanation else ""
    sizes = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        sizes.append(float(total))
        name = torch.cuda.get_device_name(index)
        yield f"GPU {index}", f"{name}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free", ""
    for name, explanation in scales_here(sizes, memory):
        yield f"scale {name}", explanation, ""


def _store_whole(store: Path) -> bool:
    """Print which runs of a store are damaged, where, and what to do; then how many there are."""
    from tepo.reporting.progress import waiting
    from tepo.store.find_run import runs
    from tepo.studies.store_check import check_contents

    state_counts, damaged = Counter[str](), 0
    for run in runs(store):
        try:
            with waiting(f"run {run.path.name}: every file is read"):
                state_counts[check_contents(run)] += 1
        except UserError as error:
            at_work = False
            with suppress(UserError):  # links lead out of it, or the file system has no locks
                at_work = os.access(run.path, os.W_OK) and run.busy()  # on a read-only disk nobody is
            if at_work:
                state_counts["in the hands of another process, not checked"] += 1
                continue
            damaged += 1
            print(f"run {run.path.name:20} DAMAGED: {error}")
    states = "".join(f"; {number} {state}" for state, number in state_counts.items())
    print(f"store {store}: {counted(state_counts.total() + damaged, 'run')}, {damaged} damaged{states}")
    return not damaged


def _engines_work() -> bool:
    """Print for each engine whether it samples, updates, syncs, saves and resumes."""
    from tepo.jobs.selftest import pairs, selftest
    from tepo.reporting.progress import waiting

    passed = True
    for sampler, engine in pairs():
        name = f"sampler={sampler} engine={engine}"
        with waiting(f"{name}: sampling, updating, saving, resuming {_LEFT_OUT}"):
            outcome = selftest(sampler, engine)
        state = {None: "skipped", True: "works", False: "FAILS"}[outcome.passed]
        print(f"{name:36} {state}: {outcome.detail}")
        passed &= outcome.passed is not False
    return passed


def _kernels_work() -> bool:
    """Print for each kernel whether it is as exact on the GPU as it has to be. True without a GPU, which is said."""
    import torch

    from tepo.policy.kernel_check import CHECKS
    from tepo.reporting.progress import waiting

    if not torch.cuda.is_available():
        print("GPU part: not run, there is no GPU here; nothing above says anything about one")
        return True
    passed = True
    for name, check in CHECKS.items():
        try:
            with waiting(f"GPU, {name}: against torch {_LEFT_OUT}"):
                figures = [(what, error, bound) for what, error, bound in check() if not error <= bound]
            wrong = [f"{what} {error:.2g}, at most {bound:.2g}" for what, error, bound in figures]
        except Exception as error:  # whatever a kernel, a driver or a compiler may raise
            wrong = [f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"]
        print(f"GPU, {name:31} {'FAILS: ' + '; '.join(wrong) if wrong else 'works'}")
        passed &= not wrong
    print("GPU part: speed and memory are measured by `python -m perf.gpu` of the source tree")
    return passed
