"""Markers stand for system components. On a user's machine a test whose component is missing is skipped with the
reason; in CI (`CI=true`), where `.ci/run` installs the components, such a skip is a failure."""

import gc
import importlib.util
import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from tests.durations import pytest_addoption, pytest_collection_modifyitems, pytest_configure  # noqa: F401 hooks

_LEFT_OVER = (
    "TEPO_PATH",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
for _name in list(os.environ):  # what a shell, a CI service or a job happens to export is not what is tested
    if _name in _LEFT_OVER or _name.startswith(("WANDB_", "SLURM_", "HYDRA_")):
        del os.environ[_name]


_JUPYTER = ("nbclient", "ipykernel", "ipywidgets")
_COMPONENTS = (
    "vllm",
    "deepspeed",
    "verl",
    "bitsandbytes",
    "lm_eval",
    "peft",
    "jupyter",
    "slurm",
    "chromium",
    "axe",
    "latex",
    "gpu",
)


def pytest_collection_finish() -> None:
    """Modules and thousands of tests stay to the end: looking for garbage among them again and again takes long."""
    gc.freeze()


def _missing(marker: str) -> str | None:
    """Why tests with this marker cannot run here, or None."""

    def module(name: str, how: str = "make engines") -> str | None:
        return None if importlib.util.find_spec(name) else f"{name} is not installed ({how})"

    def program(name: str, package: str) -> str | None:
        return None if shutil.which(name) else f"{name} is not installed (apt-get install {package})"

    match marker:
        case "vllm" | "deepspeed" | "verl":
            return module(marker)
        case "bitsandbytes" | "lm_eval" | "peft":
            return module(marker, "pip install -r requirements/dev.txt")
        case "axe":
            return module("axe_playwright_python", "pip install -r requirements/dev.txt")
        case "jupyter":
            missing = (module(name, "pip install -r requirements/dev.txt") for name in _JUPYTER)
            return next(filter(None, missing), None)
        case "slurm":
            return program("slurmctld", "slurm-wlm munge") or program("munged", "munge")
        case "chromium":
            return program("chromium", "chromium") or program("chromedriver", "chromium-driver")
        case "latex":
            return program("pdflatex", "texlive-latex-recommended")
        case "gpu":
            import torch

            return None if torch.cuda.is_available() else "no CUDA device"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in _COMPONENTS:
        if item.get_closest_marker(marker) and (reason := _missing(marker)):
            if os.environ.get("CI") == "true" and marker != "gpu":  # no CI machine has a GPU
                pytest.fail(f"in CI this must run: {reason}", pytrace=False)
            pytest.skip(reason)
