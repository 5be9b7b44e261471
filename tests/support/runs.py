"""A run small enough for tests: the shipped base, few prompts."""

import importlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tepo.common import paths
from tepo.config.compose import compose
from tepo.config.run_config import RunConfig
from tepo.store.run_folder import RunFolder

if TYPE_CHECKING:  # torch and transformers take four seconds, and half of the packages under test do without
    from tepo.store.checkpoint_files import TensorFile

SMALL = (
    "train.prompts_per_step=8",
    "train.samples_per_prompt=4",
    "train.mini_batch_prompts=4",
    "train.steps=3",
    "train.max_new_tokens=40",
)


def small(store: Path, *overrides: str) -> RunConfig:
    return compose([*SMALL, f"store={store}", *overrides])


def tiny(store: Path, *overrides: str) -> RunConfig:
    """A run in half of the time, for what does not ask how well it learns."""
    half = ("train.prompts_per_step=4", "train.mini_batch_prompts=2", "train.max_new_tokens=24", "train.max_rounds=4")
    return small(store, *half, *overrides)


def write(path: Path, text: str) -> Path:
    """A file in a folder that may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_study(
    folder: Path, name: str, rows: Mapping[str, Any], *overrides: str, models=("laptop",), seeds=(0,), **more: Any
) -> None:
    """A study in a user's folder. rows: the name of an objective, or what else is said of the row, by label."""
    listed = [{"label": label} | ({"objective": row} if isinstance(row, str) else row) for label, row in rows.items()]
    scale = {"models": [*models], "seeds": [*seeds], "overrides": [*overrides]}
    text = yaml.safe_dump({"title": name, "rows": listed, "scales": {"laptop": scale}} | more)
    write(folder / f"experiments/{name}.yaml", text)


def few_problems(folder: Path) -> dict[str, str]:
    """The benchmarks add3 and max4 with 20 problems in place of 200, in a user's folder: measuring a row on all of them
    takes ten times as long as training it for a few steps. Returns the environment that puts the folder in front."""
    for name in ("add3", "max4"):
        text = (paths.shipped("evals") / f"{name}.yaml").read_text()
        assert "count: 200\n" in text
        few = text.partition("hash:")[0].replace("count: 200\n", "count: 20\n")
        write(folder / "evals" / f"{name}.yaml", few)
    return {"TEPO_PATH": str(folder)}


def lasting(folder: Path) -> list[dict]:
    """Metrics without the figures that differ between two equal runs."""
    from tepo.training.metrics.metrics_log import VOLATILE

    return [
        {key: value for key, value in row.items() if not key.startswith(VOLATILE)}
        for row in RunFolder(folder).metrics()
    ]


def weights(folder: Path) -> dict[str, bytes]:
    """The bits of every tensor; the files themselves differ in the order of their headers."""
    import torch
    from safetensors.torch import load_file

    run = RunFolder(folder)
    return {
        name: value.flatten().view(torch.uint8).numpy().tobytes()
        for name, value in load_file(run.checkpoint(run.checkpoints()[-1]) / "model.safetensors").items()
    }


def interrupted(config: RunConfig, step: int = 1) -> RunFolder:
    """A run that Ctrl-C ended after a step."""
    from tepo.training.loop import train
    from tepo.training.run import Run

    def report(now: int, row: dict) -> None:
        if now == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Run(config), report)
    return RunFolder.of(config)


def assert_same_run(one: Path, other: Path) -> None:
    assert lasting(one) == lasting(other)
    assert weights(one) == weights(other)


def write_files(folder: Path, files: "Iterable[TensorFile]") -> None:
    """Write them one after another, each copied and freed again."""
    for file in files:
        file.copy().write(folder)


# A sampler that draws with a copy of the weights; remote: as if it were outside of the run.
COPYING = """
from tepo.common.errors import UserError
from tepo.policy.model.load_policy import load_policy
from tepo.sampling.backends import SamplerMemory
from tepo.sampling.embedded.torch_sampler import TorchSampler


class Backend:
    shares_weights = full_rows = False
    remote = {remote}
    part_rows = 8
    packages = {{}}

    def segments_may_grow(self, config):
        return True

    def check_settings(self, config, ranks):
        pass

    def check_available(self, config):
        pass

    def open(self, config, policy, source, exchange):
        own = load_policy(source, dtype=config.model.dtype)
        return TorchSampler(own.model, own.tokenizer, max_rows=config.sampler.max_rows)


BACKEND = Backend()
"""


@contextmanager
def own_backends(folder: Path, *added: tuple[ModuleType, str, str, str]) -> Iterator[None]:
    """Samplers and engines as files: the package of their kind, its group of the configuration, name and code."""
    shutil.copytree(paths.CONFIG, folder / "config")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "CONFIG", folder / "config")
        for package, group, name, code in added:
            write(folder / "config" / group / f"{name}.yaml", f"kind: {name}\n")
            write(folder / group / f"{name}.py", code)
            patch.setattr(package, "__path__", [*package.__path__, str(folder / group)])
        importlib.invalidate_caches()
        yield
    for package, _, name, _ in added:
        sys.modules.pop(f"{package.__name__}.{name}", None)
