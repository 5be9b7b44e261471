"""An RL run with vLLM and DeepSpeed on two ranks learns as the embedded one does:
the same accuracy within the seeds' spread."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tepo.config.compose import compose
from tepo.training.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.deepspeed]

RUN = (
    "train.prompts_per_step=32",
    "train.mini_batch_prompts=16",
    "train.steps=10",
    "train.max_rounds=1",
    "train.learning_rate=3e-4",
)
OTHER = ("sampler=vllm", "sampler.memory_fraction=0.06", "engine=deepspeed")
SEEDS = (0, 1, 2)


def accuracies(store: Path, ranks: int, *overrides: str) -> np.ndarray:
    """Train, and return the share of right responses of each step."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    words = [*RUN, *overrides, f"store={store}"]
    done = subprocess.run(
        [sys.executable, *launcher, "-m", "tepo_cli", "train", *words, "--quiet"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return np.array([row["critic/score/mean"] for row in RunFolder.of(compose(words)).metrics()])


def test_vllm_and_deepspeed_learn_as_the_embedded_engines_do(tmp_path: Path) -> None:
    embedded = np.array([accuracies(tmp_path, 1, f"seed={seed}") for seed in SEEDS])
    other = accuracies(tmp_path, 2, f"seed={SEEDS[0]}", *OTHER)
    gains = embedded[:, -3:].mean(1) - embedded[:, 0]
    assert gains.min() > 0.05  # there is something to learn in these steps
    ends, end = embedded[:, -3:].mean(1), other[-3:].mean()
    spread = max(ends.std(ddof=1), 0.02)
    assert abs(end - ends.mean()) < 3 * spread
    assert end - other[0] > 0.5 * gains.mean()
