"""The mirror at wandb: where it sends is for the caller to say, and not for a file that lies in the current folder."""

from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.store.run_folder import RunFolder
from tepo.training.metrics.metrics_log import MetricsLog
from tests.unit.training.small import small, write


@pytest.mark.parametrize("name", ["wandb", ".wandb"])
def test_settings_of_the_current_folder_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install -e '.[wandb]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    file = write(tmp_path / name / "settings", "[default]\nbase_url = http://127.0.0.1:9\nentity = somebody\n")
    config = small(tmp_path / "runs", "wandb.mode=online")
    with pytest.raises(UserError, match="where metrics and your key are sent") as refused:
        MetricsLog(config, RunFolder.of(config), None)
    assert refused.value.where == str(file)
