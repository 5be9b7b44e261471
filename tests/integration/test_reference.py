from pathlib import Path

import pytest

from tests.reference.runs import recorded_hashes, reference_runs, trained_hashes


@pytest.mark.disaster
@pytest.mark.peft
@pytest.mark.parametrize("name", reference_runs())
def test_a_named_run_ends_with_the_bits_on_record(name: str, tmp_path: Path) -> None:
    """On a kind of CPU without hashes it only has to end."""
    hashes = trained_hashes(name, tmp_path)
    assert hashes == recorded_hashes().get(name, hashes)
