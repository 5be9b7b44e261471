import pytest

from tepo.objectives import names
from tests.integration.trainer_cells import outcome, run_prime_rl, run_trl, run_verl
from tests.invariants.rows import covering
from tests.unit.integrations.tables import PAGE, cells_of

CELLS = cells_of(PAGE.read_text())


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
@pytest.mark.parametrize("name", [name for name in names() if name in covering()])
def test_trl(name, tmp_path):
    """Rows that together have most names and functions of formulas: each is a training of two steps."""
    assert outcome(name, run_trl(tmp_path)) == CELLS[name][0]


@pytest.mark.verl
@pytest.mark.parametrize("name", names())
def test_verl(name):
    assert outcome(name, run_verl) == CELLS[name][1]


@pytest.mark.parametrize("name", names())
def test_prime_rl(name):
    """prime-rl does not install on a CPU: its loop over responses and groups is the test's."""
    assert outcome(name, run_prime_rl) == CELLS[name][2]
