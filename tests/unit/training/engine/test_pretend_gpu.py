import json

from tests.support.commands import program

OBJECTIVES = ("tepo_max_entropy", "steer")


def test_updates_on_a_gpu_that_is_not_there() -> None:
    found = json.loads(program("tests.unit.training.engine.pretend_gpu", *OBJECTIVES).end().stdout.splitlines()[-1])
    assert found == {
        "flash": True,  # the GPU's attention is taken
        "waits": {name: [] for name in OBJECTIVES},  # no micro-batch makes the host wait
        # torch's fused AdamW reads the step count where the weights are: in main memory it is an illegal access
        "resumed": ["exp_avg gpu:0", "exp_avg_sq gpu:0", "master gpu:0", "step gpu:0"],
        "offloaded": ["exp_avg cpu", "exp_avg_sq cpu", "master cpu", "step cpu", "weight gpu:0"],
        # `mm` without `out` would make a float32 temporary for every tile: 235 MB at 16k tokens of width 3,584
        "products": ["aten.addmm.dtype_out", "aten.mm.dtype_out"],
        # torch 2.9's `addmm` refuses to add half precision to float32: every update in bfloat16 would end there
        "products before torch 2.10": ["aten.mm.dtype", "aten.mm.dtype_out"],
    }
