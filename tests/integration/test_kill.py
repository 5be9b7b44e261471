import random
import signal
from pathlib import Path

import pytest

from tepo.common import provenance
from tepo.store.run_folder import RunFolder
from tests.support.commands import OwnSignal, Started, started
from tests.support.runs import SMALL, assert_same_run, small

pytestmark = pytest.mark.disaster

STEPS = "train.steps=9"


def start(store: Path, *words: str, own_signal: OwnSignal | None = None) -> Started:
    return started("train", *SMALL, STEPS, *words, f"store={store}", "--quiet", own_signal=own_signal)


STALE = ("train.staleness=2", "sampler.margin=2")
BEST = ("train.keep_best=true", "train.validate_every=1", "train.validation_problems=2", "data.benchmarks=[add3]")
EIGHT_BIT = ("engine.optimizer=adamw_8bit",)
ADAPTERS = ("model.lora_rank=4", "model.dtype=bfloat16")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((*STALE, *EIGHT_BIT), id="stale, 8-bit", marks=pytest.mark.bitsandbytes),
        pytest.param((*BEST, *ADAPTERS), id="best, adapters", marks=pytest.mark.peft),
    ],
)
def test_two_kills_change_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    draw = random.Random(7)
    run = RunFolder.of(small(tmp_path / "killed", STEPS, *words))
    for _ in range(2):
        # about twenty files change from step to step: twice in two steps of nine
        a_step_later = OwnSignal(signal.SIGKILL, run.path, "open */metrics.jsonl", draw.randrange(1, 40))
        start(tmp_path / "killed", *words, own_signal=a_step_later).end(code=-signal.SIGKILL)
        assert not run.finished()
    for store in ("killed", "whole"):
        start(tmp_path / store, *words).end()
    other = RunFolder.of(small(tmp_path / "whole", STEPS, *words))
    assert_same_run(run.path, other.path)
    (whole_session,), sessions = provenance.sessions(other.path), provenance.sessions(run.path)
    assert sessions[0]["ended"] is None  # killed
    assert sessions[-1]["ended"]
    assert {session["commit"] for session in sessions} == {whole_session["commit"]}
