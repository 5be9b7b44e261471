import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tepo.common.errors import UserError
from tepo.config.compose import options
from tepo.sampling.backends import SamplerOptions, sampler_backend, sampler_kinds
from tepo.sampling.vllm import server_sampler
from tepo.sampling.vllm.vllm_sampler import EngineOptions
from tepo.training.engine.backends import engine_kinds


def test_every_file_has_its_yaml() -> None:
    assert sampler_kinds() == options("sampler")
    assert engine_kinds() == options("engine")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_an_evaluation_takes_the_embedded_sampler_in_float32() -> None:
    assert SamplerOptions().resolved_kind() == "torch"
    assert SamplerOptions().resolved_dtype() == "float32"
    assert SamplerOptions(kind="vllm").backend is sampler_backend("vllm")


def test_unknown_names() -> None:
    with pytest.raises(UserError, match="unknown backend 'vlm'") as caught:
        SamplerOptions(kind="vlm").resolved_kind()
    assert "vllm" in caught.value.fix
    with pytest.raises(UserError, match="unknown sampler 'vlm'"):
        sampler_backend("vlm")


@pytest.mark.parametrize(("dtype", "given"), [("bfloat16", [{"head_dtype": "float32"}]), ("float32", [])])
def test_a_server_below_float32_multiplies_by_the_output_matrix_in_float32(
    tmp_path: Path, dtype: str, given: list[dict[str, str]]
) -> None:
    """For rollouts and evaluations alike; one in float32 is started as before. It has one thread: eight that measure
    side by side would start one a core each, and vLLM leaves alone what is set."""
    options = EngineOptions(str(tmp_path), dtype, 128)
    command, environment = server_sampler.serve_command(options, tmp_path, memory=0.5, cpu=True)
    assert environment["OMP_NUM_THREADS"] == "1"
    found = [json.loads(value) for name, value in pairwise(command) if name == "--hf-overrides"]
    assert found == given


def test_a_server_is_given_its_share_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own share is nearly all of it, and a server that finds less does not start."""
    given = []

    def start(options: EngineOptions, *, log: Path, memory: float, cpu: bool, gpus: str) -> None:
        command, _ = server_sampler.serve_command(options, tmp_path, memory=memory, cpu=False)
        given.append(command[command.index("--gpu-memory-utilization") + 1])
        raise KeyboardInterrupt

    monkeypatch.setattr(server_sampler, "local_server", start)
    options = SamplerOptions(kind="vllm", data_parallel=2, memory=0.6, max_length=64)
    with pytest.raises(KeyboardInterrupt), options.backend.open_model("package:laptop", options, tmp_path):
        pass
    assert given == ["0.6"]
