import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tepo.objectives import load_objective, names
from tepo.store.run_folder import RunFolder, final_model
from tepo.training.loop import train
from tepo.training.run import Run
from tests.support.runs import small


@pytest.mark.disaster
@pytest.mark.parametrize("name", names())
def test_a_row_trains(name: str, tmp_path: Path) -> None:
    taught = ["model.teacher=package:laptop_sparse"] * load_objective(name).needs.teacher_logprobs
    folder = train(Run(small(tmp_path, f"objective={name}", "train.steps=2", *taught)))
    rows = RunFolder(folder).metrics()
    assert len(rows) == 2
    assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))
    assert max(row["actor/grad_norm"] for row in rows) > 0
    before, after = (
        load_file(path / "model.safetensors") for path in (Path("tepo/assets/laptop"), final_model(folder))
    )
    assert any(not torch.equal(value, after[key]) for key, value in before.items())
