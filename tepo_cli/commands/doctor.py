"""`tepo doctor`: what this machine has, what is missing and how to get it."""

import os
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tepo.common.text import counted, install_line

if TYPE_CHECKING:
    from tepo.reporting.progress import Screen

_PACKAGES = ("torch", "transformers", "hydra-core", "typer", "pandas", "math-verify", "antlr4-python3-runtime")
_EXTRAS = {
    "bitsandbytes": install_line("bitsandbytes"),
    "datasets": install_line("hub"),
    "wandb": install_line("wandb"),
    "peft": install_line("lora"),
}
_PROGRAMS = {
    "sbatch": "Slurm dispatch: apt-get install slurm-wlm munge",
    "chromium": "page tests: apt-get install chromium chromium-driver",
    "g++": "DeepSpeed's optional kernels",
}
_TRITON = "Triton's kernels on a GPU: apt-get install gcc python3-dev"


_SELFTEST = "Run each installed engine for real (about a minute), and what a GPU runs (another)."
_ACCEPTANCE = "Where a GPU's results go, a file to send back."


def doctor(
    store: Annotated[
        Path | None, typer.Option(help="Folder of runs, each of which is checked file by file (default: none).")
    ] = None,
    selftest: Annotated[bool, typer.Option(help=_SELFTEST)] = True,
    acceptance: Annotated[Path, typer.Option(metavar="FILE", help=_ACCEPTANCE)] = Path("gpu_acceptance.json"),
) -> None:
    """Check this machine: versions, engines, GPUs, disk.

    Shows also the scales that fit, what is missing and how to get it; with --store the damaged runs of a store; then
    each installed engine for two steps, and on a GPU attention, the fused log-prob, updates and sampling against their
    limits. Exit code 1 when one fails or a run is damaged."""
    from tepo.reporting.progress import Screen, say

    console, checks = Screen(), [*_packages(), *_programs(), *_machine(store or Path("runs"))]
    for what, state, _ in checks:
        say(f"{what:24} {state}", console)
    for what, _, fix in checks:
        if fix:
            say(f"{what}: {fix}", console)
    passed = store is None or _store_whole(console, store)
    if selftest:
        passed &= _engines_work(console)
        passed &= _gpu_works(console, acceptance)
    else:
        say("GPU part: not run (--no-selftest)", console)
    if not passed:
        raise typer.Exit(1)


def _store_whole(console: "Screen", store: Path) -> bool:
    """Print which runs of a store are damaged, where, and what to do; then how many there are."""
    from tepo.common.errors import UserError
    from tepo.reporting.progress import say
    from tepo.store.find_run import runs
    from tepo.studies.store_check import check_contents

    found, damaged = Counter[str](), 0
    for run in runs(store):
        try:
            with console.status(f"run {run.path.name}: every file is read"):
                found[check_contents(run)] += 1
        except UserError as error:
            at_work = False
            with suppress(UserError):  # links lead out of it, or the file system has no locks
                at_work = os.access(run.path, os.W_OK) and run.busy()  # on a read-only disk nobody is
            if at_work:
                found["in the hands of another process, not checked"] += 1
                continue
            damaged += 1
            say(f"run {run.path.name:20} DAMAGED: {error}", console)
    states = "; ".join(f"{number} {state}" for state, number in found.items())
    total = counted(found.total() + damaged, "run")
    say(f"store {store}: {total}, {damaged} damaged" + (f"; {states}" if states else ""), console)
    return not damaged


def _gpu_works(console: "Screen", path: Path) -> bool:
    """Print for each probe of the GPU whether it works, and keep what it found. True without a GPU, which is said."""
    import torch

    from tepo.reporting.progress import say
    from tepo.training.probes.acceptance import NAMES, accept
    from tepo.training.probes.probe_record import Figure

    if not torch.cuda.is_available():
        say("GPU part: not run, there is no GPU here; nothing above says anything about one", console)
        return True
    passed, results = True, accept(path)
    for name in NAMES:
        with console.status(f"GPU, {name}: against its limits (--no-selftest leaves this out)"):
            result = next(results)
        wrong = [figure["name"] for figure in result["figures"] if not Figure(**figure).holds]
        detail = "; ".join([*filter(None, [result["note"]]), *wrong]) or f"in {result['seconds']:.0f} s"
        say(f"GPU, {name:31} {'works' if result['state'] == 'works' else 'FAILS'}: {detail}", console)
        passed &= result["state"] == "works"
    say(f"GPU part: {path} has the figures; send it back with a report", console)
    return passed


def _engines_work(console: "Screen") -> bool:
    """Print for each engine whether it samples, updates, syncs, saves and resumes."""
    from tepo.jobs.selftest import pairs, selftest
    from tepo.reporting.progress import say

    passed = True
    for sampler, engine in pairs():
        name = f"sampler={sampler} engine={engine}"
        with console.status(f"{name}: sampling, updating, saving, resuming (--no-selftest leaves this out)"):
            outcome = selftest(sampler, engine)
        say(
            f"{name:36} {'skipped' if outcome.passed is None else 'works' if outcome.passed else 'FAILS'}: "
            f"{outcome.detail}",
            console,
        )
        passed &= outcome.passed is not False
    return passed


def _packages() -> Iterator[tuple[str, str, str]]:
    """Versions, and how to get what is missing: (what, state, advice)."""
    from importlib.metadata import PackageNotFoundError, version

    from tepo.common.registry import untested
    from tepo.sampling.backends import sampler_backend, sampler_kinds
    from tepo.training.engine.backends import engine_backend, engine_kinds

    engines = [sampler_backend(kind).packages for kind in sampler_kinds()]
    engines += [engine_backend(kind).packages for kind in engine_kinds()]
    wanted = dict.fromkeys(_PACKAGES, install_line())
    for packages in (*engines, _EXTRAS):
        wanted |= packages
    for package, fix in wanted.items():
        try:
            yield package, version(package), "; ".join(untested({package: fix}))
        except PackageNotFoundError:
            yield package, "missing", fix


def _programs() -> Iterator[tuple[str, str, str]]:
    """Paths, and how to get what is missing: (what, state, advice)."""
    for program, fix in _PROGRAMS.items():
        path = shutil.which(program)
        yield program, path or "missing", "" if path else fix
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")  # in Triton's order
    yield "C compiler", compiler or "missing", "" if compiler else _TRITON
    header = Path(sysconfig.get_path("include")) / "Python.h"
    yield "Python.h", str(header) if header.is_file() else "missing", "" if header.is_file() else _TRITON


def _machine(store: Path) -> list[tuple[str, str, str]]:
    """Hardware of the machine: (what, state, advice)."""
    import torch

    from tepo.launch.slurm_options import cluster
    from tepo.planning.fit import scales_here

    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    existing = next(path for path in (store.absolute(), *store.absolute().parents) if path.exists())
    disk = shutil.disk_usage(existing)
    rows = [
        ("cores", str(cores), ""),
        ("memory", f"{memory:.0f} GiB", ""),
        (f"disk at {existing}", f"{disk.free / 2**30:.0f} GiB free of {disk.total / 2**30:.0f}", ""),
    ]
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        rows.append(
            (
                f"store {store}",
                "not writable" if existing.is_dir() else f"{existing} is a file",
                "choose another with --store DIR",
            )
        )
    if slurm := cluster():
        rows.append(("Slurm", *slurm))
    if not torch.cuda.is_available():
        rows.append(("GPUs", "none", ""))
    sizes = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        sizes.append(float(total))
        rows.append(
            (
                f"GPU {index}",
                f"{torch.cuda.get_device_name(index)}, {free / 2**30:.0f} of {total / 2**30:.0f} GiB free",
                "",
            )
        )
    return [*rows, *((f"scale {name}", said, "") for name, said in scales_here(sizes, memory * 2**30))]
