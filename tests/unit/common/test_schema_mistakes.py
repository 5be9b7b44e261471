"""The same mistakes in each kind of file and on the command line."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tepo.common import paths
from tepo.common.errors import UserError
from tepo.common.schema import document
from tepo.config.compose import compose
from tepo.objectives import load_objective
from tepo.problems import training_sets
from tepo.problems.benchmarks import parse_benchmark
from tepo.studies.study import parse_study

OBJECTIVE = """about: mine
formula:
  A: R - mean_g(R)
  w: exp(mean_i(d))
  J: min(w*A, clip(w, 1 - low, 1 + 0.28)*A)
average: tokens
constants:
  low: {value: 0.2, source: mine}
"""
STUDY = """title: mine
rows:
  - label: a
    objective: tepo
scales:
  laptop:
    models: [laptop]
    seeds: [0]
"""
BENCHMARK = """title: mine
count: 4
samples: 1
temperature: 1.0
max_new_tokens: 8
prompt: raw
dataset:
  path: mine.jsonl
  split: test
"""
TRAINING_SET = """count: 4
hash: abc
provenance: here
licence: mine
dataset:
  path: mine.jsonl
"""


def load_training_set(path: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_sets, "SETS", path.parent)
        return training_sets.load_training_set(path.stem)


FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "objective": (OBJECTIVE, load_objective),
    "study": (STUDY, parse_study),
    "benchmark": (BENCHMARK, parse_benchmark),
    "training set": (TRAINING_SET, load_training_set),
}


@pytest.mark.parametrize(
    ("kind", "written", "instead", "line", "key", "what", "fix"),
    [
        # unknown key
        ("objective", "low:", "lwo:", 5, "formula.J", "J: unknown name 'low'", "'lwo'"),
        ("study", "objective:", "objectiv:", 4, "rows[0].objectiv", "unknown key", "'rows[0].objective'"),
        ("training set", "licence:", "license:", 4, "license", "unknown key 'license'", "'licence'"),
        # unknown choice
        ("objective", "mean_i(", "meen_i(", 4, "formula.w", "w: unknown function 'meen_i'", "'mean_i'"),
        ("objective", "tokens", "token_mean", 6, "average", "average: unknown average 'token_mean'", "'tokens'"),
        ("study", "[laptop]", "[labtop]", 7, "scales.laptop.models[0]", "unknown model 'labtop'", "'laptop'"),
        # wrong type
        ("objective", "0.2,", "small,", 8, "constants.low", "'small' is no number", "such as 0.2"),
        ("study", "seeds: [0]", "seeds: 0", 8, "scales.laptop.seeds", "scales.laptop.seeds is a list, not 0", ""),
        ("benchmark", "count: 4", "count: four", 2, "count", "count must be a whole number, not 'four'", "problems"),
        # out of bounds
        ("study", "[0]", "[0, -1]", 8, "scales.laptop.seeds[1]", "scales.laptop.seeds[1] must be at least 0", ""),
        ("benchmark", "samples: 1", "samples: 0", 3, "samples", "samples must be at least 1, not 0", "responses"),
        # missing key
        ("objective", "  J: min(w*A, clip(w, 1 - low, 1 + 0.28)*A)\n", "", 1, "", "the formula has no line J", "J:"),
        ("study", "    seeds: [0]\n", "", 6, "scales.laptop", "scales.laptop.seeds is missing", "add seeds"),
        ("benchmark", "count: 4\n", "", 1, "", "count is missing: number of problems", "add count"),
        # not a mapping
        ("objective", "  low: {value: 0.2, source: mine}", "  [low]", 7, "constants", "constants are a map", "beta"),
        ("study", "  - label: a\n    objective: tepo\n", "  - tepo\n", 3, "rows[0]", "rows[0] is a mapping", "{key"),
    ],
)  # fmt: skip
def test_a_mistake_names_line_key_and_the_nearest_name(
    kind: str, written: str, instead: str, line: int, key: str, what: str, fix: str, tmp_path: Path
) -> None:
    text, read = FILES[kind]
    assert text.count(written) == 1
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(written, instead))
    with pytest.raises(UserError) as caught:
        read(path)
    assert caught.value.what.startswith(what)
    assert caught.value.where == f"{path}:{line}" + (f" ({key})" if key else "")
    assert fix in caught.value.fix
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("extra", "line", "what"),
    [
        (b"x: [\n", 2, "not valid YAML"),
        (b"x: 1\ny: 2\nx: 3\n", 3, "the key 'x' is there twice"),
        (b"y:\n  x: {a: 1, a: 2}\n", 2, "the key 'a' is there twice"),
        (b"x: !!python/name:os.system\n", 1, "not valid YAML"),
        (b"x: \xff\n", None, "not a text file in UTF-8"),
        (b'x: "a\\0b"\n', 1, "not valid YAML: text with a control character"),
        (b'x: "\\ud800"\n', 1, "not valid YAML: text with a control character"),
        (b"x: " + b"9" * 4000 + b"\n", 1, "not valid YAML: a number of over 300 digits"),
        (b"x: &x [*x]\n", 1, "not valid YAML: over 100,000 values"),
        (b"x: [" + b"1," * 100_000 + b"]\n", 1, "not valid YAML: over 100,000 values"),
        (b"x: " + b"x" * 2**20, None, "a file of more than 1 MiB"),
        (b"deep: " + b"[" * 5000 + b"]" * 5000, 1, "not valid YAML: nested more than 50 deep"),
    ],
    ids=range(12),
)
def test_a_file_that_is_broken_names_the_line(extra: bytes, line: int | None, what: str, tmp_path: Path) -> None:
    """Every kind of file is read by `document.load`."""
    path = tmp_path / "mine.yaml"
    path.write_bytes(STUDY.encode() + extra)
    with pytest.raises(UserError) as caught:
        document.load(path)
    assert caught.value.what.startswith(what)
    assert caught.value.where == str(path) + ("" if line is None else f":{STUDY.count(chr(10)) + line}")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_holds_no_mapping(kind: str, tmp_path: Path) -> None:
    for text in ("", "- a\n", "a\n"):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(UserError, match="must hold a mapping"):
            FILES[kind][1](tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    ("word", "where", "what", "fix"),
    [
        ("engine.kind=torsh", "engine.kind=torsh", "unknown engine.kind 'torsh'", "'torch'"),
        ("train.steps=abc", "train.steps=abc", "train.steps must be a whole number, not 'abc'", "rollouts"),
        ("train.steps", "", "not an override: 'train.steps'", "key=value"),
        ("train.steps=[1", "train.steps=[1", "", ""),  # what: Hydra's own words
    ],
)
def test_an_override_names_itself_and_the_nearest_name(word: str, where: str, what: str, fix: str) -> None:
    with pytest.raises(UserError) as caught:
        compose(["seed=1", word, "store=elsewhere"])
    assert caught.value.what.startswith(what)
    assert caught.value.where == where
    assert fix in caught.value.fix
    assert caught.value.exit_code == 2


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(paths.CONFIG, tmp_path / "config")
    monkeypatch.setattr(paths, "CONFIG", tmp_path / "config")
    return tmp_path / "config"


@pytest.mark.parametrize(
    ("file", "written", "instead", "line", "key", "what", "fix"),
    [
        ("scale/laptop.yaml", "  steps:", "  stepz:", 5, "train.stepz", "unknown key 'train.stepz'", "'train.steps'"),
        ("engine/torch.yaml", "kind: torch", "kind: torsh", 2, "engine.kind", "unknown engine.kind 'torsh'", "'torch'"),
        ("config.yaml", "seed: 0", "seed: [", 11, "", "not valid YAML", "colons"),
        ("data/laptop.yaml", "kind: procedural", "name: laptop", 4, "", "the key 'name' is there twice", "join"),
        ("objective/tepo.yaml", "k3(d)", "k3(dd)", 6, "formula.kl", "kl: unknown name 'dd'", "'d'"),
    ],
)
def test_a_mistake_in_a_group_names_the_line(
    file: str, written: str, instead: str, line: int, key: str, what: str, fix: str, groups: Path
) -> None:
    path = groups / file
    path.write_text(path.read_text().replace(written, instead, 1))
    with pytest.raises(UserError) as caught:
        compose(["train.warmup_steps=1"])
    assert caught.value.what.startswith(what)
    assert caught.value.where == f"{path}:{line}" + (f" ({key})" if key else "")
    assert fix in caught.value.fix


def test_an_override_of_an_objective_names_the_key() -> None:
    with pytest.raises(UserError, match="did you mean 'beta'") as caught:
        compose(["objective.betta=1"])
    assert "  objective.betta=1\n            ^^^^^" in caught.value.what
    assert caught.value.exit_code == 2


def test_a_panel_that_is_no_study(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(STUDY.replace("rows:\n  - label: a\n    objective: tepo\n", "panels: [panel_e, panel_x]\n"))
    with pytest.raises(UserError, match="unknown panel 'panel_x'") as caught:
        parse_study(path)
    assert caught.value.where == f"{path}:2 (panels[1])"


@pytest.mark.parametrize("first", ["[1, 2, 3]", "{k: 1}"])
def test_aliases_that_multiply_are_counted_before_they_are_written_out(first: str, tmp_path: Path) -> None:
    """ "Billion laughs", of lists and of mappings that are merged; a few aliases stay as they are."""
    path = tmp_path / "mine.yaml"
    line = "n{next}: &n{next} [{of}]\n" if first[0] == "[" else "n{next}: &n{next}\n  <<: [{of}]\n"
    laughs = "".join(line.format(next=n + 1, of=", ".join([f"*n{n}"] * 9)) for n in range(9))
    path.write_text(f"n0: &n0 {first}\n{laughs}")
    with pytest.raises(UserError, match="not valid YAML: over 100,000 values, where each alias is written out"):
        document.load(path)
    path.write_text("a: &a {b: [1, 2]}\nc: {<<: *a, d: 3}\ne: [*a, *a]\n")
    assert document.load(path).data["c"] == {"b": [1, 2], "d": 3}
