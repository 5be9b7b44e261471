import os
import stat
import tempfile
from pathlib import Path

import pytest

from tepo.sampling.vllm.server_sampler import _private_folder


@pytest.mark.parametrize("length", [20, 100])
def test_only_we_may_enter_and_a_socket_s_path_fits(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the folder for temporary files, unless that alone is nearly as long as a socket's path may be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        own = Path(short) / ("x" * (length - len(short) - 1))
        own.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(own))
        before = os.umask(0)
        try:
            with _private_folder() as folder:
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
                assert (folder.parent == own) == (length == 20)
                assert len(os.fsencode(folder / f"{0:036}")) <= 107
                (folder / "left").touch()
        finally:
            os.umask(before)
        assert not folder.exists()
