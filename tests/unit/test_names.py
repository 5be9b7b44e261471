import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHOSEN = {"backends", "commands"}  # folders whose modules are named by the configuration and by the command line


def test_a_module_has_a_name_of_its_own() -> None:
    modules = defaultdict(list)
    for package in ("tepo", "tepo_cli"):
        for file in (ROOT / package).rglob("*.py"):
            if file.stem not in ("__init__", "__main__") and file.parent.name not in CHOSEN:
                modules[file.stem].append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in modules.items() if len(files) > 1} == {}


def test_a_class_has_a_name_of_its_own() -> None:
    classes = defaultdict(list)
    for package in ("tepo", "tepo_cli"):
        for file in (ROOT / package).rglob("*.py"):
            for name in re.findall(r"^class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
                classes[name].append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in classes.items() if len(files) > 1} == {}
