"""What is measured of the code itself: mutants differ in one thing, statements are counted, answers are scored."""

import ast
from pathlib import Path

import pytest
import yaml

from perf import house
from perf.house import names, part_of, questions, score, statements
from perf.mutants import RECORD, drawn, mutants_of
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


def test_what_a_process_enters_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def inner():\n    return 1\n\ndef never():\n    return 2\n")
    code = f"{RECORD}\nrecord({f'{tmp_path}/'!r}, {f'{tmp_path}/log'!r})\nimport one; one.inner(); one.inner()"
    python("-c", code, PYTHONPATH=str(tmp_path))
    assert (tmp_path / "log").read_text() == "one.py\t<module>\none.py\tinner\n"


def test_a_mutant_meets_the_tests_that_enter_its_function(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name, text in {
        "tepo/__init__.py": "",
        "tepo/room/a.py": "".join(f"def {name}(x):\n    return x < 3\n" for name in ("held", "loose", "never")),
        "tests/unit/room/test_a.py": "from tepo.room.a import held\ndef test_a():\n    assert held(2) > held(3)\n",
        "tests/unit/room/test_b.py": "from tepo.room.a import loose\ndef test_b():\n    assert loose(0)\n",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    code = f"""
import pytest
import yaml
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


def test_statements_names_and_parts(tmp_path: Path) -> None:
    assert statements(TINY) == 10
    (tmp_path / "tepo").mkdir()
    (tmp_path / "tepo/a.py").write_text(TINY)
    shown = ["tepo/a.py", "  class Limit", "    __repr__(self)", "    clipped(self, value, grün)"]
    assert list(names(tmp_path)) == shown
    files = {
        "tepo/api.py": "tepo",
        "tepo/config/data/x.py": "tepo/config",
        "tepo_cli/commands/a.py": "tepo_cli",
        "tests/unit/a/b/c.py": "tests/unit/a",
        "tests/unit/x.py": "tests/unit",
        "tests/data/x.py": "tests/data",
    }
    assert {file: part_of(Path(file)) for file in files} == files


def names_in(path: Path) -> set[str]:
    """What is defined in a file: of Python, or the lines of a formula."""
    text = path.read_text()
    return set(yaml.safe_load(text)["formula"]) if path.suffix == ".yaml" else set(defined(text))


def test_answers_are_scored_and_the_true_ones_exist() -> None:
    asked, root = questions(), house.ROOT
    assert len(asked) == 30
    assert [file for _, file, name in asked if name not in names_in(root / file)] == []
    right = [f"{file}: {name}" for _, file, name in asked]
    assert score(right) == {"asked": 30, "file": 30, "name": 30}
    assert score([f"`{right[0]}`", right[1] + "x", *["?"] * 28]) == {"asked": 30, "file": 2, "name": 1}
    for answers, message in ((right[1:], "longer"), ([line.replace(":", "\t") for line in right], "not FILE:NAME")):
        with pytest.raises(ValueError, match=message):
            score(answers)
