"""Benchmarks with guarded rows run in `make perf`, which CI calls after the tests."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from perf import fused, small_lm, trl_step
from perf.__main__ import BENCHMARKS, GUARDED, UNNAMED
from perf.ratios import Unavailable
from tests.support.commands import python

ROOT = Path(__file__).parents[3]
NAMES = [
    pytest.param(name, marks=pytest.mark.vllm) if name == "vllm" else name for name in BENCHMARKS if name not in GUARDED
]


@pytest.mark.disaster
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_measures_both_sides(name: str) -> None:
    if name in ("step", "small_lm") and find_spec("trl") is None:
        pytest.skip("needs trl")
    known = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TEPO_PEERS_PYTHON": sys.executable}
    done = python("-m", "perf", name, "--turns", "1", "--short", cwd=ROOT, seconds=3600, **known)
    rows = json.loads(done.stdout.splitlines()[-1])
    if name in ("vllm", "small_lm") and isinstance(rows, str):
        pytest.skip(rows)
    assert rows
    assert all(min(row["ours"], row["peer"], row["ratio"]) > 0 for row in rows), rows


def test_a_real_model_is_measured_by_name_and_only_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "small_lm" in BENCHMARKS
    assert "small_lm" not in (*GUARDED, *UNNAMED)
    monkeypatch.setenv("TEPO_MODELS", str(tmp_path))
    with pytest.raises(Unavailable, match=r"not in the cache .* smollm2-135m-wordings"):
        small_lm.measure(1, True)


def test_a_step_is_not_measured_without_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = tmp_path / "python"  # of an environment without packages
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    for path, reason in ((tmp_path / "none", "no environment of the peers"), (bare, "has no trl")):
        monkeypatch.setenv("TEPO_PEERS_PYTHON", str(path))
        with pytest.raises(Unavailable, match=reason):
            trl_step.measure(1, True)


def test_ci_makes_all_stages_or_those_that_are_named_and_ends_at_the_first_failure(tmp_path: Path) -> None:
    (tmp_path / "apt-get").write_text("#!/bin/sh\n")
    (tmp_path / "make").write_text('#!/bin/sh\necho "made $1"\ntest "$1" != "$FAILS"\n')
    for stub in tmp_path.iterdir():
        stub.chmod(0o755)

    def stages(*names: str, fails: str = "") -> tuple[list[str], int]:
        environment = os.environ | {"FAILS": fails, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        command = ["bash", str(ROOT / ".ci" / "run"), *names]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return re.findall("made (.+)", done.stdout), done.returncode

    assert stages() == (["engines", "test", "test-slow", "perf"], 0)
    assert stages(fails="test") == (["engines", "test"], 1)
    assert stages("engines", "test-slow", "perf") == (["engines", "test-slow", "perf"], 0)
    assert "-m perf --short --check" in (ROOT / "Makefile").read_text()


@pytest.mark.disaster
def test_the_fused_op_is_measured_beside_trl() -> None:
    pytest.importorskip("trl")
    for variant in ("tepo", "trl with entropy gradient"):
        found = fused.measured(variant, (64, 500, 32), sys.executable)
        assert found["cpu_s"] > 0
