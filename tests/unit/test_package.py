import re
import shlex
import tomllib
import zipfile
from pathlib import Path
from typing import get_args

import pytest
import yaml

import tepo
from tepo.common.text import install_line
from tepo.config.run_config import TrackerName
from tests.support.commands import python

ROOT = Path(tepo.__file__).parents[1]


def test_a_checkout_is_installed_from_its_folder_and_a_wheel_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, wheel = tmp_path / "a folder" / "tepo", tmp_path / "site-packages"
    checkout.mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    assert shlex.split(install_line("vllm", checkout)) == ["pip", "install", "-e", f"{checkout}[vllm]"]
    assert install_line("vllm", wheel) == "pip install 'tepo[vllm]'"
    assert install_line("", wheel) == "pip install tepo"
    monkeypatch.chdir(checkout)
    assert install_line("vllm", checkout) == "pip install -e '.[vllm]'"


def test_every_extra_that_is_advised_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = [path.read_text() for folder in ("tepo", "tepo_cli") for path in (ROOT / folder).rglob("*.py")]
    advised = {name for source in sources for name in re.findall(r"install_line\([\"']([\w-]+)[\"']\)", source)}
    assert advised >= {"vllm", "deepspeed", "hub"}
    assert advised | set(get_args(TrackerName)) <= set(extras)


def test_the_citation_has_this_version_and_both_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == tepo.__version__
    papers = [paper["identifiers"][0]["value"] for paper in citation["references"]]
    assert papers == ["arXiv:2604.12736", "arXiv:2508.04349"]


@pytest.mark.slow
def test_the_wheel_holds_licence_types_and_studies(tmp_path: Path) -> None:
    python("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    (file,) = tmp_path.glob("tepo-*.whl")
    with zipfile.ZipFile(file) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (wheel.read(name).decode() for name in names if name.endswith(".dist-info/METADATA"))
    assert {"tepo/py.typed", "tepo_cli/py.typed", "tepo/_data/ablations/panel_e.yaml"} <= names
    assert "tepo/_data/evals/protocols/qwen3_thinking.yaml" in names
    assert "tepo/assets/laptop/model.safetensors" in names
    assert {name.split("/licenses/")[1] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    said = {"License-Expression": "Apache-2.0", "Version": tepo.__version__, "Provides-Extra": "gpu"}
    for key, value in (*said.items(), ("Classifier", "Typing :: Typed")):
        assert f"{key}: {value}" in metadata.splitlines()


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved to another commit by whoever holds the action's repository."""
    files = (ROOT / ".github" / "workflows").glob("*.y*ml")
    used = [line for path in files for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    assert [line for line in used if not re.fullmatch(r" +- uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", line)] == []
