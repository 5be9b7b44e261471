"""What is measured of the code itself: mutants differ in one thing, statements are counted, questions have answers."""

import ast
import csv
from pathlib import Path

import yaml

from perf.house import ROOT, names, sizes
from perf.mutants import drawn, mutants_of
from tests.integration.commands import python
from tests.unit.test_documentation import defined

TINY = '''"""About 7 things."""

class Limit:
    """At most 3."""

    low: Literal[1] = 2

    def __repr__(self) -> str:
        return str(4 + 5)

    def clipped(self, value: "int", grün: bool = True) -> float:
        """Between -1 and 1."""
        if value < self.low and not grün:
            raise ValueError(f"{value + 1} is under {self.low - 1}")
        log.warning("%d", 6 * 6)
        self.seen += 1
        return min(value, 8)
'''
EXPECTED = {
    *("2 -> (3)", "2 -> (1)", "True -> (False)", "value < self.low -> (value <= self.low)"),
    "value < self.low and (not grün) -> (value < self.low or not grün)",
    "value < self.low and (not grün) -> (not (value < self.low and (not grün)))",
    *("not grün -> (grün)", "self.seen += 1 -> self.seen -= 1", "self.seen += 1 -> pass", "1 -> (2)", "1 -> (0)"),
    "raise ValueError(f'{value + 1} is under {self.low - 1}') -> pass",
    *("min(value, 8) -> (max(value, 8))", "min(value, 8) -> (None)", "8 -> (9)", "8 -> (7)"),
}


def test_mutants_change_one_thing_that_is_no_text() -> None:
    source = TINY.encode()
    found = mutants_of("tiny.py", source)
    assert {f"{one.old} -> {one.new}" for one in found} == EXPECTED
    assert len({one.applied(source) for one in found} | {source}) == len(found) + 1
    for one in found:
        assert ast.dump(ast.parse(one.applied(source))) != ast.dump(ast.parse(source))
        assert one.old.split(" ")[0] in TINY.splitlines()[one.line - 1]
        assert one.owner == ("Limit" if one.line < 10 or one.old == "True" else "Limit.clipped")


def test_a_draw_is_its_seed_s_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    (tmp_path / "tepo/room/testing").mkdir(parents=True)
    (tmp_path / "tepo/room/a.py").write_text(TINY)
    (tmp_path / "tepo/room/testing/b.py").write_text(TINY)
    first, other = drawn(tmp_path, "room", 1), drawn(tmp_path, "room", 2)
    assert first == drawn(tmp_path, "room", 1) != other
    assert set(first) == set(other) == set(mutants_of("tepo/room/a.py", TINY.encode()))


def test_a_mutant_meets_the_tests_that_enter_its_function(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name, text in {
        "tepo/__init__.py": "",
        "tepo/room/a.py": "".join(f"def {name}(x):\n    return x < 3\n" for name in ("held", "loose", "never")),
        "tests/unit/room/test_a.py": "import subprocess, sys\ndef test_a():\n    code = 'from tepo.room.a import held; "
        "assert held(2) > held(3)'\n    subprocess.run([sys.executable, '-c', code], check=True)\n",
        "tests/unit/room/test_b.py": "from tepo.room.a import loose\ndef test_b():\n    assert loose(0)\n",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    code = f"""
from pathlib import Path
from perf.mutants import drawn, look, try_mutants
tree, looks = Path({str(tree)!r}), {{}}
chosen = [one for one in drawn(tree, "room", 1) if one.new == "(x <= 3)"]
print(*try_mutants(tree, chosen, look(tree, "room", looks), looks), sep="\\n")
"""
    lines = python("-c", code, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1").stdout.splitlines()
    assert [line[-8:] for line in lines[:2]] == ["status 0"] * 2  # a look at each file
    assert sorted(line.partition(" (")[0] for line in lines[2:]) == [
        f"{verdict}: tepo/room/a.py:{line} {owner}: x < 3 ->"
        for verdict, line, owner in (("caught", 2, "held"), ("not entered", 6, "never"), ("survived", 4, "loose"))
    ]


def test_sizes_and_names(tmp_path: Path) -> None:
    for file in ("tepo/a.py", "tepo/room/deep/b.py", "tests/unit/a/b/c.py", "tests/data/x.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(TINY)
    found = sizes(tmp_path)
    parts = {"tepo": 1, "tepo/room": 1, "all of tepo/": 2, "tests/unit/a": 1, "tests/data": 1, "all of tests/": 2}
    assert {part: row["files"] for part, row in found.items()} == parts
    assert {row["statements"] / row["files"] for row in found.values()} == {10}
    shown = ["  class Limit", "    __repr__(self)", "    clipped(self, value, grün)"]
    assert list(names(tmp_path)) == ["tepo/a.py", *shown, "tepo/room/deep/b.py", *shown]


def test_the_answers_to_the_questions_exist() -> None:
    with (ROOT / "perf/results/house_questions.tsv").open(newline="") as text:
        asked = list(csv.DictReader(text, delimiter="\t"))
    assert len(asked) == 30
    for row in asked:
        path = ROOT / row["file"]
        text = path.read_text()
        assert row["name"] in (yaml.safe_load(text)["formula"] if path.suffix == ".yaml" else defined(text)), row
