"""Markers stand for system components. On a user's machine a test whose component is missing is skipped with the
reason; in CI (`CI=true`), where `.ci/run` installs the components, such a skip is a failure."""

import atexit
import gc
import importlib.util
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Generator
from importlib.machinery import PathFinder
from itertools import groupby

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import settings

settings.register_profile("tepo", deadline=None)  # no test depends on load
settings.load_profile("tepo")

_TERMINAL = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
for _name in list(os.environ):  # what a shell, a CI service or a job happens to export is not what is tested
    if _name in ("TEPO_PATH", *_TERMINAL, *_RANKS) or _name.startswith(("WANDB_", "TRACKIO_", "SLURM_", "HYDRA_")):
        del os.environ[_name]
os.environ.pop("TEPO_MODELS", None)
if "PYTEST_XDIST_WORKER" not in os.environ:  # nor are models and problems in the user's cache; workers inherit this one
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="tepo-tests-cache")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)


TRITON = os.path.join(sys.prefix, "triton")  # a folder of its own: the other tests run without it, as on a CPU's torch
_DEV = "pip install -r requirements/dev.txt"
_MODULES = {
    **{name: ([name], "make engines") for name in ("vllm", "deepspeed", "verl", "reasoning_gym", "trackio", "triton")},
    **{name: ([name], _DEV) for name in ("bitsandbytes", "lm_eval", "peft", "tensorboard", "wandb")},
    "axe": (["axe_playwright_python"], _DEV),
    "jupyter": (["nbclient", "ipykernel", "ipywidgets"], _DEV),
}
_PROGRAMS = {  # and Debian's packages
    "slurm": {"slurmctld": "slurm-wlm munge", "munged": "munge"},
    "chromium": {"chromium": "chromium", "chromedriver": "chromium-driver"},
    "latex": {"pdflatex": "texlive-latex-recommended"},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", metavar="SEED", type=int, help="shuffle the files and the tests within each")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("--order")) is not None:
        draw = random.Random(seed)
        files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
        for tests in files:
            draw.shuffle(tests)  # who share a module's fixtures stay together
        draw.shuffle(files)
        items[:] = [item for tests in files for item in tests]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and thousands of tests stay to the end: looking for garbage among them again and again takes long."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _missing(marker: str) -> str | None:
    """Why tests with this marker cannot run here, or None."""
    modules, how = _MODULES.get(marker, ([], ""))
    needed = [(one, importlib.util.find_spec(one) or PathFinder.find_spec(one, [TRITON]), how) for one in modules]
    programs = _PROGRAMS.get(marker, {}).items()
    needed += [(name, shutil.which(name), f"apt-get install {package}") for name, package in programs]
    for name, found, get in needed:
        if not found:
            return f"{name} is not installed ({get})"
    if marker == "gpu":
        import torch

        return None if torch.cuda.is_available() else "no CUDA device"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A command's `main` takes this folder from `sys.path` for good, and what the next test starts needs it: verl
    installs a package `tests` of its own."""
    before = sys.path[:]
    try:
        return (yield)
    finally:
        sys.path[:] = before


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in (*_MODULES, *_PROGRAMS, "gpu"):
        if item.get_closest_marker(marker) and (reason := _missing(marker)):
            if os.environ.get("CI") == "true" and marker != "gpu":  # no CI machine has a GPU
                pytest.fail(f"in CI this must run: {reason}", pytrace=False)
            pytest.skip(reason)
