import shutil
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.policy.model.model_location import resolve
from tepo.store.run_folder import final_model
from tests.support.runs import interrupted, small


def test_a_folder_is_a_model_a_run_or_neither(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(resolve("package:laptop"), model)
    assert final_model(model) == model
    run = interrupted(small(tmp_path / "runs"), 1)
    last = run.checkpoint(run.checkpoints()[-1])
    assert final_model(run.path) == final_model(last) == last
    (last / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(UserError, match="the checkpoint is damaged"):
        final_model(last)
    (model / "model.safetensors").unlink()
    for folder in (model, tmp_path):
        with pytest.raises(UserError, match="no model and no checkpoint there"):
            final_model(folder)
