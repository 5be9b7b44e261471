"""`python -m perf.gpu` on the CPU at a small size: a lent GPU's minutes are not for finding typos."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest

from perf import gpu_wheels
from perf.gpu.__main__ import NEVER, RESULTS, stored, table
from perf.gpu.part import LIMITS, PROBES, TEN_MINUTES
from tests.integration.commands import program

ROOT = Path(__file__).parents[2]
PARTS = [part for part in LIMITS if part not in PROBES]


def perf_gpu(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "perf.gpu", *words]
    return subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the small form of every part wrote; each in a process of its own, as perf.gpu starts them. The two that are
    probes of `tepo doctor` run in test_doctor.py, and attention below as well."""
    folder = tmp_path_factory.mktemp("gpu")
    for part in PARTS:
        done = program("perf.gpu.part", part, folder / f"gpu_{part}.json", "--small", cwd=ROOT).end()
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


@pytest.mark.slow
@pytest.mark.deepspeed
def test_every_part_works_at_a_small_size(small: Path) -> None:
    for part in PARTS:
        found = json.loads((small / f"gpu_{part}.json").read_text())
        assert found["state"] == "works", (part, found["note"])
        assert found["figures"], part
        assert found["machine"]["device"] == "cpu"
        lines = table(found)
        assert lines[0].startswith(f"{part}: works, ")
        assert "WRONG" not in "\n".join(lines)


@pytest.mark.slow
@pytest.mark.deepspeed
def test_a_result_of_a_cpu_is_never_shown_as_one_of_a_gpu(small: Path) -> None:
    lines = stored(small)
    assert [line for line in lines if line.endswith(NEVER)] == [f"{part}: {NEVER}" for part in LIMITS]


@pytest.mark.slow
def test_a_part_that_works_is_shown_and_the_machine_named(tmp_path: Path) -> None:
    done = perf_gpu("attention", "--small", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^attention: works, \d+ s, cpu, torch ", done.stdout, re.MULTILINE)
    assert "prime-rl" in done.stdout
    assert done.stdout.endswith(" s: attention works\n")


def test_every_part_is_run_though_all_fail(tmp_path: Path) -> None:
    """Without torch, where each part ends at its first import."""
    (tmp_path / "torch.py").write_text("raise ImportError('hidden')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = perf_gpu("--small", "--out", str(tmp_path / "out"), PYTHONPATH=path)
    assert done.returncode == 1, done.stderr
    for part in TEN_MINUTES:
        assert f"{part}: failed (exit code 1: ImportError: hidden)" in done.stdout
        assert json.loads((tmp_path / f"out/gpu_{part}.json").read_text())["state"] == "failed"


def test_stored_results_are_shown_with_ratio_and_verdict(tmp_path: Path) -> None:
    figure = {"name": "error", "unit": "relative", "ours": 0.5, "limit": 0.25, "must": "<=", "note": "varlen"}
    machine = {"device": "NVIDIA H100", "torch": "2.11.0"}
    found = {"part": "attention", "state": "wrong", "note": "", "seconds": 3.0, "machine": machine, "figures": [figure]}
    (tmp_path / "gpu_attention.json").write_text(json.dumps(found))
    lines = stored(tmp_path)
    assert lines[1] == "attention: wrong, 3 s, NVIDIA H100, torch 2.11.0"
    assert re.fullmatch(r" +error +relative +0\.5 +0\.25 +2 WRONG varlen", lines[2])
    assert f"fused: {NEVER}" in lines


def test_no_result_of_a_cpu_is_committed() -> None:
    for path in RESULTS.glob("gpu_*.json"):
        assert json.loads(path.read_text())["machine"]["device"] != "cpu", path.name


def test_the_parts_fit_ten_minutes() -> None:
    assert sum(LIMITS[part] for part in TEN_MINUTES) <= 600


@pytest.mark.skipif(bool(find_spec("torch")) and __import__("torch").cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_says_what_can_be_done() -> None:
    done = perf_gpu("attention")
    assert done.returncode == 2
    assert "no GPU here" in done.stderr
    assert "--small" in done.stderr
    assert "unknown atention; parts: attention" in perf_gpu("atention").stderr


def needed(name: str, seen: set[str]) -> set[str]:
    """A package and all that it needs here, extras apart."""
    plain = re.split(r"[^A-Za-z0-9_.-]", name)[0].lower().replace("_", "-").replace(".", "-")
    if plain in seen:
        return seen
    seen.add(plain)
    for line in requires(plain) or ():
        if not re.search(r"extra ==|python_version [<=]|platform_system == .Windows|sys_platform == .win", line):
            needed(line, seen)
    return seen


@pytest.mark.deepspeed
def test_the_carried_wheels_are_all_that_a_bare_machine_lacks() -> None:
    carried = {name.partition("==")[0] for name in gpu_wheels.requirements()}
    assert all("==" in name for name in gpu_wheels.requirements())
    there = {"torch", "numpy", "packaging", "pyyaml", "regex", "tokenizers", "safetensors", "tqdm", "transformers"}
    lacking = {"deepspeed", "hydra-core", "math-verify", "latex2sympy2-extended", "typer"}
    everything: set[str] = set(there)  # and what they need is there as well
    for name in lacking:
        needed(name, everything)
    assert everything - there <= carried


def test_an_empty_folder_of_wheels_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"python -m perf\.gpu_wheels"):
        gpu_wheels.install(tmp_path, tmp_path / "site")


def test_the_training_parts_import_without_tables() -> None:
    code = "import sys; sys.modules['pyarrow'] = sys.modules['pandas'] = None; "
    code += "import tepo.training.loop, tepo.training.probes.sampler"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
