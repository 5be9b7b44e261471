import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tepo.common import paths
from tepo.common.errors import UserError, nearest
from tepo.common.schema import REQUIRED, Exclusive, Location, derived, document, option, read
from tepo.config.compose import _leaves, compose
from tepo.formula import row
from tepo.objectives import load_objective
from tepo.problems.benchmarks import parse_benchmark
from tepo.studies.study import parse_study


@dataclass(frozen=True)
class Inner:
    size: int = option(1, "a size", low=1, high=3)


@dataclass(frozen=True)
class Outer:
    """One field of each type."""

    word: str = option(REQUIRED, "a word")
    kind: Literal["one", "two"] = option("one", "a kind")
    number: float | None = option(None, "a number", low=Exclusive(0), high=math.inf)
    share: float = option(0.5, "a share", low=0, high=Exclusive(1))
    on: bool = option(False, "a switch")
    several: tuple[int, ...] = option((), "numbers", low=0)
    names: list[str] = option([], "names")
    table: dict[str, float] = option({}, "a table")
    inner: Inner = option(Inner(), "what is inside")
    either: str | dict[str, Any] | None = option(None, "text or a mapping")
    later: str = derived("", "somebody else fills it in")


AT = Location(lambda _: "here")


@pytest.mark.parametrize(
    ("key", "given", "read_as"),
    [
        ("word", 3, "3"),
        ("number", "1e-3", 0.001),
        ("number", float("inf"), float("inf")),
        ("on", "off", False),
        ("several", [1, "2", 1e3, "1e3", 10**400], (1, 2, 1000, 1000, 10**400)),
        ("table", {"a": 1}, {"a": 1.0}),
        ("inner", {"size": 3}, Inner(3)),
        ("either", {"a": None}, {"a": None}),
    ],
)
def test_a_value_gets_the_type_of_its_field(key: str, given: Any, read_as: Any) -> None:
    found = getattr(read(Outer, {"word": "a", key: given}, AT), key)
    assert (found, type(found)) == (read_as, type(read_as))


@pytest.mark.parametrize(
    ("key", "given", "what"),
    [
        ("word", None, "word must be text, not nothing"),
        ("kind", "three", "unknown kind 'three'"),
        ("number", 0, "number must be positive, not 0"),
        ("share", 1, "share must be below 1, not 1"),
        ("several", [1.5], "several[0] must be a whole number, not 1.5"),
        ("table", {"a": "x"}, "table.a must be a number, not 'x'"),
        ("later", "x", "the key 'later' is not allowed here"),
    ],
)
def test_another_value_is_refused(key: str, given: Any, what: str) -> None:
    with pytest.raises(UserError) as caught:
        read(Outer, {"word": "a", key: given}, AT)
    assert caught.value.what.startswith(what)
    assert caught.value.where.startswith(f"here ({key}")


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


FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "objective": (OBJECTIVE, load_objective),
    "study": (STUDY, parse_study),
    "benchmark": (BENCHMARK, parse_benchmark),
}


@pytest.mark.parametrize(
    ("kind", "written", "instead", "line", "key", "what", "fix"),
    [
        ("objective", "low:", "lwo:", 5, "formula.J", "J: unknown name 'low'", "'lwo'"),
        ("study", "objective:", "objectiv:", 4, "rows[0].objectiv", "unknown key", "'rows[0].objective'"),
        ("study", "seeds: [0]", "seeds: 0", 8, "scales.laptop.seeds", "scales.laptop.seeds is a list, not 0", ""),
        ("study", "[0]", "[0, -1]", 8, "scales.laptop.seeds[1]", "scales.laptop.seeds[1] must be at least 0", ""),
        ("benchmark", "count: 4\n", "", 1, "", "count is missing: number of problems", "add count"),
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
        (b"y:\n  x: {a: 1, a: 2}\n", 2, "the key 'a' is there twice"),
        (b"x: !!python/name:os.system\n", 1, "not valid YAML"),
        (b"x: " + b"9" * 4000 + b"\n", 1, "not valid YAML: a number of over 300 digits"),
        (b"x: [" + b"1," * 100_000 + b"]\n", 1, "not valid YAML: over 100,000 values"),
        (b"x: " + b"x" * 2**20, None, "a file of more than 1 MiB"),
        (b"deep: " + b"[" * 5000 + b"]" * 5000, 1, "not valid YAML: nested more than 50 deep"),
    ],
    ids=range(7),
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


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(paths.CONFIG, tmp_path / "config")
    monkeypatch.setattr(paths, "CONFIG", tmp_path / "config")
    return tmp_path / "config"


@pytest.mark.parametrize(
    ("file", "written", "instead", "line", "key", "what", "fix"),
    [
        ("scale/laptop.yaml", "  steps:", "  stepz:", 5, "train.stepz", "unknown key 'train.stepz'", "'train.steps'"),
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


OBJECTIVES, KEYS = (row.names(), row.labels()), (sorted(_leaves()),)


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("gpso", OBJECTIVES, "gspo"),  # two letters changed places
        ("TEPO-w/o. KL", OBJECTIVES, "tepo_no_kl"),  # as tables print them
        ("adam", OBJECTIVES, ""),
        ("learning_rate", KEYS, "train.learning_rate"),
        ("train.wrap", KEYS, "model.wrap"),  # in another section
        ("train.foo", KEYS, ""),
    ],
)
def test_the_name_that_is_meant_comes_first(name: str, known: Any, meant: str) -> None:
    assert [*nearest(name, *known), ""][0] == meant
