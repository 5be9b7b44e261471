"""The wheels that a bare machine with one GPU lacks: collected here, carried there, installed without a network.

    python -m perf.gpu_wheels DIR      # where pip works: DIR gets the wheels of perf/gpu_wheels.txt (CPython 3.12)
    python -m perf.gpu --wheels DIR    # on the machine, from the source tree

What that machine already has is shadowed for `perf.gpu` alone: nothing is installed into its Python.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from tepo.common import interpreter

LIST = Path(__file__).with_name("gpu_wheels.txt")
MOST = 64 << 20  # bytes of all wheels together
_GLIBC = (17, 24, 26, 27, 28)  # manylinux_2_N: pip takes the ones that are named, and no others


def requirements() -> dict[str, bool]:
    """Each `name==version` of the list, and whether its wheel is made from its sdist."""
    lines = [line.split("#")[0].split() for line in LIST.read_text().splitlines()]
    return {words[0]: "source" in words[1:] for words in lines if words}


def collect(folder: Path) -> list[Path]:
    """Download or build every wheel of the list. Raises SystemExit where they are too large or pip fails."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in _GLIBC] + ["--platform=manylinux2014_x86_64"]
    binary = ["--only-binary=:all:", "--python-version=3.12", "--implementation=cp", *platforms]
    wanted = requirements()
    ready = [name for name, source in wanted.items() if not source]
    made = [name for name, source in wanted.items() if source]
    pip("download", "--no-deps", *binary, "-d", str(folder), *ready)
    pip("wheel", "--no-deps", "--no-binary=:all:", "-w", str(folder), *made)
    wheels = sorted(folder.glob("*.whl"))
    foreign = [wheel.name for wheel in wheels if not wheel.name.endswith(("-any.whl", "x86_64.whl"))]
    total = sum(wheel.stat().st_size for wheel in wheels)
    if foreign or total > MOST:
        sys.exit(f"not to be carried: {', '.join(foreign) or f'{total >> 20} MB of wheels, at most {MOST >> 20}'}")
    return wheels


def install(folder: Path, target: Path) -> None:
    """Unpack the wheels of a folder under `target`, without a network. Raises SystemExit for an empty folder."""
    wheels = [str(wheel) for wheel in sorted(folder.glob("*.whl"))]
    if not wheels:
        sys.exit(f"no wheels in {folder}: python -m perf.gpu_wheels {folder}, where there is a network")
    pip("install", "--no-index", "--no-deps", "--no-compile", "--target", str(target), *wheels)


def pip(*words: str) -> None:
    """Run pip, quietly; DeepSpeed compiles nothing while its wheel is made."""
    environment = interpreter.environment() | {"DS_BUILD_OPS": "0"}
    command = interpreter.command("-m", "pip", words[0], "--quiet", "--disable-pip-version-check", *words[1:])
    if subprocess.run(command, env=environment, check=False).returncode:
        sys.exit(f"pip {words[0]} failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    wheels = collect(parser.parse_args().folder)
    print(f"{len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / 2**20:.1f} MB")


if __name__ == "__main__":
    main()
