"""What a launcher does to the ranks that are left when one died."""

import os
import signal

import pytest

from tepo.common.errors import RunFailed
from tepo.training.distributed.process_group import lost_ranks


def test_sigterm_in_a_run_over_several_ranks_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(RunFailed, match=r"rank 1 of 2: ended from outside \(SIGTERM\)"), lost_ranks():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
