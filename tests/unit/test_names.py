import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHOSEN = {"backends", "commands"}  # folders whose modules are named by the configuration and by the command line


def test_a_module_and_a_class_have_a_name_of_their_own() -> None:
    modules, classes = defaultdict(list), defaultdict(list)
    for file in [*(ROOT / "tepo").rglob("*.py"), *(ROOT / "tepo_cli").rglob("*.py")]:
        if file.stem not in ("__init__", "__main__") and file.parent.name not in CHOSEN:
            modules[file.stem].append(str(file.relative_to(ROOT)))
        for name in re.findall(r"^class (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            classes[name].append(str(file.relative_to(ROOT)))
    for places in (modules, classes):
        assert {name: files for name, files in places.items() if len(files) > 1} == {}
