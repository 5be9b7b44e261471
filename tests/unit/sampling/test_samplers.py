"""Which sampler a configuration means, and what servers and engines of several ranks are given."""

import json
import os
import stat
import tempfile
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from tepo.common.errors import UserError
from tepo.policy.model.allocator import grow_segments
from tepo.policy.model.model_location import resolve
from tepo.sampling.backends import SamplerOptions, sampler_backend
from tepo.sampling.engine_ranks import EngineOfRank
from tepo.sampling.vllm import server_sampler
from tepo.sampling.vllm.server_sampler import local_server, serve_command
from tepo.sampling.vllm.vllm_sampler import EngineOptions
from tests.support.processes import children, read


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_an_evaluation_takes_the_embedded_sampler_in_float32() -> None:
    assert SamplerOptions().resolved_kind() == "torch"
    assert SamplerOptions().resolved_dtype() == "float32"
    assert SamplerOptions(kind="vllm").backend is sampler_backend("vllm")
    with pytest.raises(UserError, match="unknown backend 'vlm'"):
        SamplerOptions(kind="vlm").resolved_kind()


@pytest.mark.parametrize(("dtype", "given"), [("bfloat16", [{"head_dtype": "float32"}]), ("float32", [])])
def test_a_server_below_float32_multiplies_by_the_output_matrix_in_float32(
    tmp_path: Path, dtype: str, given: list[dict[str, str]]
) -> None:
    """For rollouts and evaluations alike; one in float32 is started as before. It has one thread: eight that measure
    side by side would start one a core each, and vLLM leaves alone what is set. vLLM's own share of a GPU is nearly all
    of it, and a server that finds less does not start."""
    options = EngineOptions(str(tmp_path), dtype, 128)
    command, environment = serve_command(options, tmp_path, memory=0.5, cpu=True)
    assert environment["OMP_NUM_THREADS"] == "1"
    assert [json.loads(value) for name, value in pairwise(command) if name == "--hf-overrides"] == given
    command, _ = serve_command(options, tmp_path, memory=0.6, cpu=False)
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.6"


@pytest.mark.parametrize("length", [20, 100])
def test_only_we_may_enter_and_a_socket_s_path_fits(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the folder for temporary files, unless that alone is nearly as long as a socket's path may be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        own = Path(short) / ("x" * (length - len(short) - 1))
        own.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(own))
        before = os.umask(0)
        try:
            with server_sampler._private_folder() as folder:
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
                assert (folder.parent == own) == (length == 20)
                assert len(os.fsencode(folder / f"{0:036}")) <= 107
        finally:
            os.umask(before)
        assert not folder.exists()


@pytest.mark.parametrize(("bucket", "files"), [(1, 4), (500, 2), (10_000, 1)])
def test_every_tensor_is_in_one_file(tmp_path: Path, bucket: int, files: int) -> None:
    """Tied ones too, which share memory, and those whose numbers do not lie in order."""
    draw = torch.Generator().manual_seed(0)
    table, norm = torch.randn(10, 12, generator=draw), torch.randn(3, generator=draw).bfloat16()
    weights = {"embed": table, "norm": norm, "turned": torch.randn(4, 5, generator=draw).T, "lm_head.weight": table}
    server_sampler.write_weights(weights, tmp_path, bucket)
    written = [load_file(file) for file in tmp_path.iterdir()]
    assert len(written) == files
    assert sorted(name for part in written for name in part) == sorted(weights)
    for name, value in (pair for part in written for pair in part.items()):
        torch.testing.assert_close(value, weights[name], rtol=0, atol=0)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_neighbours_hold_an_engine_and_one_of_them_speaks_for_it(size: int) -> None:
    held = [EngineOfRank.of(SimpleNamespace(rank=rank, world_size=8), size) for rank in range(8)]
    assert [engine.index for engine in held] == [rank // size for rank in range(8)]
    shares = [number for engine in held if engine.leads for number in engine.share(range(20))]
    assert sorted(shares) == list(range(20))
    assert EngineOfRank.of(None, 1) == EngineOfRank(0, 1, leads=True)  # a single process


def test_a_server_has_no_part_in_how_the_trainers_memory_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user has them grow, an engine over several GPUs sums another way."""
    options = EngineOptions(resolve("package:laptop"), "bfloat16", 64, tensor_parallel=2)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "")  # put back as it was, though the trainer sets it
        monkeypatch.delenv(name)
    grow_segments()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "--disable-custom-all-reduce" not in serve_command(options, tmp_path)[0]
    with local_server(options, log=tmp_path / "log"):
        environments = [read(process, "environ") for process in children(os.getpid())]
    (environment,) = (text for text in environments if "VLLM_SERVER_DEV_MODE" in text)
    assert "PYTORCH_CUDA_ALLOC_CONF" not in environment
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:512,expandable_segments:True")
    assert "--disable-custom-all-reduce" in serve_command(options, tmp_path)[0]
