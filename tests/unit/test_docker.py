"""docker/Dockerfile names what is there. Whether it builds, the workflow docker.yml says: it takes docker."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import yaml

import tepo

ROOT = Path(tepo.__file__).parents[1]
# instructions without comments, each a line
LINES = re.sub(r"^#.*\n", "", (ROOT / "docker/Dockerfile").read_text(), flags=re.M).replace("\\\n", "").splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = (ROOT / ".github/workflows/docker.yml").read_text()


def stages() -> dict[str, list[str]]:
    """Instructions of each stage, by its name, with those of the stages that it is made from."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in filter(None, LINES):
        if words := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            name = words[2]
            found[name] = list(found.get(words[1], []))
        else:
            found[name].append(line)
    return found


def copied() -> list[str]:
    """Sources that are copied from the repository."""
    lines = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from=" not in line]
    return [source for sources in lines for source in sources]


def test_what_is_copied_is_there_and_let_through() -> None:
    rules = (ROOT / "docker/Dockerfile.dockerignore").read_text().split()
    assert rules[0] == "*"
    let_through = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert {source.split("/")[0] for source in copied()} == let_through
    assert [source for source in copied() if not (ROOT / source).exists()] == []
    assert not [rule for rule in rules[1:] if not rule.startswith("!") and any(fnmatch(one, rule) for one in copied())]


def test_the_wheel_gets_all_that_it_is_built_from() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], *PROJECT["project"]["license-files"]}
    assert needed | {PROJECT["project"]["readme"], "pyproject.toml"} <= set(copied())


def test_each_image_has_the_packages_that_make_installs_and_a_user_without_rights() -> None:
    make, found = (ROOT / "Makefile").read_text(), stages()
    targets = yaml.safe_load(WORKFLOW)["jobs"]["docker"]["strategy"]["matrix"]["target"]
    assert targets == ["cpu", "gpu"]
    for target, file in {"cpu": "base.txt", "gpu": "gpu.txt"}.items():
        assert f"-r requirements/{file})" in make
        packages = "\n".join(found[f"{target}-packages"])
        assert re.findall(r"-r /requirements/(\S+)", packages) == [file]
        assert found[target][-1] == "USER tepo"
        assert 'ENTRYPOINT ["tepo"]' in found[target]
        assert f"COPY --from={target}-packages /opt/tepo /opt/tepo" in found[target]
