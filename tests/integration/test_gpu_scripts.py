import json
import os
import re
from pathlib import Path

import pytest

from perf.gpu.__main__ import NEVER, PARTS, stored, table
from tests.support.commands import program, python

ROOT = Path(__file__).parents[2]
# attention and resume: below; the engines of deepspeed and vllm_head: by themselves; update is a part of one_gpu
SCRIPTS = ("fused", "layers", "small_lm", "one_gpu", "sampler")


def small(folder: Path, *parts: str) -> dict[str, dict]:
    """What the small form of parts finds; each in a process of its own, as perf.gpu starts them."""
    found = {}
    for part in parts:
        program("perf.gpu", part, "--into", folder / part, "--small", cwd=ROOT).end()
        found[part] = json.loads((folder / part).read_text())
        assert found[part]["state"] == "works", (part, found[part]["note"], table(found[part]))
        assert found[part]["machine"]["device"] == "cpu"
        assert "WRONG" not in "\n".join(table(found[part]))
        assert found[part]["figures"][-1]["name"] == "still allocated after its close"
    return found


@pytest.mark.disaster
def test_every_part_works_at_a_small_size(tmp_path: Path) -> None:
    found = small(tmp_path, *SCRIPTS)
    (tmp_path / "gpu_cpu.json").write_text(json.dumps({"parts": found}))
    assert stored(tmp_path)[1:-1] == [f"{part}: {NEVER}" for part in PARTS]  # a CPU's is never shown as one of a GPU


@pytest.mark.disaster
@pytest.mark.vllm
def test_the_part_with_vllm_watches_the_memory(tmp_path: Path) -> None:
    figures = {figure["name"]: figure["ours"] for figure in small(tmp_path, "vllm")["vllm"]["figures"]}
    assert figures["taken in training, at most"] > 0
    assert (figures["steps"], figures["benchmarks measured"]) == (2, 1)
    assert figures["taken in the measurer, at most"] >= figures["taken when measuring begins"] > 0


@pytest.mark.disaster
def test_missing_packages_fail_where_they_are_needed(tmp_path: Path) -> None:
    """A run is killed and resumed without the packages of tables."""
    packages = ("altair", "pandas", "pyarrow", "scipy", "sklearn", "vl_convert", "vllm")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({packages}))\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    words = ("attention", "resume", "vllm", "flash4", "--small", "--out", tmp_path / "out")
    said = python("-m", "perf.gpu", *words, PYTHONPATH=path, cwd=ROOT, code=1).stdout
    assert re.search(r"steps with equal metrics, killed or not .* 3 +3 +1 holds", said)
    assert re.search(r"^attention: works, \d+ s, cpu, torch ", said, re.MULTILINE)
    assert "vllm: missing (vllm is not installed)" in said
    assert "flash4: not run (flash-attn-4 trains on GPUs of compute capability 9.0 or more)" in said
    kept = json.loads((tmp_path / "out/gpu_cpu.json").read_text())["parts"]
    states = {"attention": "works", "resume": "works", "vllm": "missing", "flash4": "not run"}
    assert {part: one["state"] for part, one in kept.items()} == states
