from pathlib import Path

import pytest

from tepo.config.compose import compose
from tepo.planning.fit import study_disk
from tepo.policy.model.shapes import shape_of
from tepo.store.checkpoint_files import damage
from tepo.store.run_folder import RunFolder
from tepo.studies.plan_studies import plan_all
from tepo.training.loop import train
from tepo.training.resources.disk import run_disk
from tepo.training.run import Run
from tepo_cli.show_fit import show_disk
from tests.support.runs import small


def size(folder: Path, *names: str) -> int:
    return sum(path.stat().st_size for name in names for path in folder.glob(name))


@pytest.mark.parametrize(
    "words", [(), ("model.dtype=bfloat16",), ("engine.offload=true",)], ids=["float32", "bfloat16", "offload"]
)
def test_the_plan_has_the_bytes_that_a_run_writes(tmp_path: Path, words: tuple[str, ...]) -> None:
    config = small(tmp_path, "train.steps=2", *words)
    run, seen = RunFolder.of(config), []

    def look(step: int, row: dict) -> None:
        if step == 2:
            assert not damage(run.checkpoint(1))
            seen.append(size(run.checkpoint(1), "*.safetensors", "optimizer/*"))

    train(Run(config), look)
    planned = run_disk(Run(config))
    assert seen[0] == pytest.approx(planned.checkpoint, rel=0.03)  # headers, norms and biases
    assert size(run.checkpoint(2), "**/*.safetensors") == pytest.approx(planned.weights, rel=0.03)


def test_what_a_large_model_takes() -> None:
    config = compose(["scale=paper", "model=qwen2.5-7b"])
    count = shape_of(config.model.path).parameters
    assert run_disk(Run(config)).weights == 2 * count
    assert run_disk(Run(config)).checkpoint == 14 * count  # masters and two moments in float32
    adapters = run_disk(Run(compose(["scale=paper", "model=qwen2.5-7b", "engine=torch", "model.lora_rank=32"])))
    assert adapters.resuming == 12 * shape_of(config.model.path).adapter_parameters(32)


def test_what_stays_and_what_is_there_on_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((_, units),) = plan_all(["panel-e"], "paper", store=tmp_path)
    one, runs = run_disk(Run(units[0].config)), len({unit.id for unit in units if not unit.row.base})
    every = study_disk(units)
    assert every.kept == pytest.approx(runs * one.weights)
    assert every.one == pytest.approx((runs - 1) * one.weights + 3 * one.checkpoint)
    assert every.all == pytest.approx(runs * 3 * one.checkpoint)
    show_disk(units)
    said = " ".join(capsys.readouterr().err.split())
    assert f"{one.weights / 1e9:,.0f} GB of weights when it has finished; {runs} runs" in said
    assert f"disk in all: {every.kept / 1e9:,.0f} GB stay" in said
