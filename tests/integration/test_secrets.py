"""What lies in the environment is in no file that a command writes."""

import importlib.util
import lzma
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.commands import tepo
from tests.support.runs import SMALL, few_problems

pytestmark = pytest.mark.disaster

NAMES = ("HF_TOKEN", "WANDB_API_KEY", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT", "DATABASE_URL")
SECRETS = {name: f"secret{number}-0123456789abcdef0123456789abcdef" for number, name in enumerate(NAMES)}
STUDY = """
title: mine
rows: [{{label: untrained, base: true}}, {{label: GRPO, objective: grpo}}]
scales: {{laptop: {{models: [laptop], seeds: [0], overrides: {few}}}}}
"""


def content(path: Path) -> bytes:
    """The bytes of a file, unpacked where it is compressed."""
    if path.suffix == ".parquet":
        return str([pq.read_schema(path).metadata, pq.read_table(path).to_pylist()]).encode()
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()


def test_no_secret_in_any_stored_file(tmp_path: Path) -> None:
    few = [*SMALL, "train.steps=1", "data.benchmarks=[add3]"]
    (tmp_path / "experiments").mkdir()
    few_problems(tmp_path)
    (tmp_path / "experiments/mine.yaml").write_text(STUDY.format(few=few))
    trackers = [name for name in ("wandb", "tensorboard", "trackio") if importlib.util.find_spec(name)]
    for line in (
        ["train", "--evaluate", "objective=gspo", f"tracking.to=[{','.join(trackers)}]", "tracking.offline=true", *few],
        ["eval", "max4", "--model", "RUN", "--limit", "4"],
        ["ablate", "mine"],
        ["report", "mine", "--results", "results.md"],
        ["records", "write", "mine"],
    ):
        runs = [path.parent.name for path in tmp_path.glob("runs/*/config.json")]
        words = [runs[0] if word == "RUN" else word for word in line]
        done = tepo(*words, cwd=tmp_path, TEPO_PATH=str(tmp_path), TRACKIO_DIR=str(tmp_path / "trackio"), **SECRETS)
        assert not any(secret in done.stdout + done.stderr for secret in SECRETS.values())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"report.html", "README.md", "provenance.json", "log.txt", "config.json"} <= {path.name for path in files}
    told = [(path.name, name) for path in files for name, one in SECRETS.items() if one.encode() in content(path)]
    assert told == []
