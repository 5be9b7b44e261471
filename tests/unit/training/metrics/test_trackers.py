"""What trackers hold of a run is tested with them themselves in `tests/integration/test_trackers.py`."""

import sys
from pathlib import Path
from typing import get_args

import pytest

from tepo.common.errors import UserError
from tepo.config.run_config import TrackerName
from tepo.training.loop import train
from tepo.training.metrics.trackers import check_trackers
from tepo.training.run import Run
from tests.support.runs import small, write


@pytest.mark.parametrize("name", get_args(TrackerName))
def test_one_that_is_not_installed_is_refused_before_anything_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=f"{name} is not installed") as refused:
        train(Run(small(tmp_path / "runs", f"tracking.to=[{name}]")))
    assert refused.value.exit_code == 2
    assert f"[{name}]" in refused.value.fix
    assert not (tmp_path / "runs").exists()


@pytest.mark.wandb
@pytest.mark.parametrize("name", ["wandb", ".wandb"])
def test_settings_of_the_current_folder_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where wandb sends is for the caller to say, and not for a file that lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / name / "settings", "[default]\nbase_url = http://127.0.0.1:9\nentity = somebody\n")
    with pytest.raises(UserError, match="where metrics and your key are sent") as refused:
        check_trackers(small(tmp_path / "runs", "tracking.to=[wandb]"))
    assert refused.value.where == str(file)
    check_trackers(small(tmp_path / "runs", "tracking.to=[wandb]", "tracking.offline=true"))
