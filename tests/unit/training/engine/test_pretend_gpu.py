import json

import pytest

from tests.support.commands import program

OBJECTIVES = ("tepo", "tepo_max_entropy", "steer")


@pytest.fixture(scope="module")
def found() -> dict:
    done = program("tests.unit.training.engine.pretend_gpu", *OBJECTIVES).end()
    return json.loads(done.stdout.splitlines()[-1])


def test_no_micro_batch_makes_the_host_wait(found: dict) -> None:
    assert found["flash"], "the GPU's attention was not taken"
    assert found["waits"] == {name: [] for name in OBJECTIVES}


def test_a_resumed_optimiser_counts_its_steps_on_the_device(found: dict) -> None:
    """torch's fused AdamW reads the step count where the weights are;
    one in main memory is an illegal access on a GPU."""
    assert found["resumed"] == ["exp_avg gpu:0", "exp_avg_sq gpu:0", "master gpu:0", "step gpu:0"]


def test_an_offloaded_optimiser_stays_in_main_memory(found: dict) -> None:
    assert found["offloaded"] == ["exp_avg cpu", "exp_avg_sq cpu", "master cpu", "step cpu", "weight gpu:0"]


def test_the_products_of_half_precision_are_summed_in_float32_in_place(found: dict) -> None:
    """`mm` without `out` would make a float32 temporary for every tile: 235 MB at 16k tokens of width 3,584."""
    assert found["products"] == ["aten.addmm.dtype_out", "aten.mm.dtype_out"]


def test_before_torch_2_10_nothing_in_half_precision_is_added_to_float32(found: dict) -> None:
    """torch 2.9's `addmm` refuses it: every update of a bfloat16 policy on a GPU would end there."""
    assert found["products before torch 2.10"] == ["aten.mm.dtype", "aten.mm.dtype_out"]
