"""Ten minutes of one GPU: what of the GPU code works, how fast, against which limit.

    python -m perf.gpu [PART …] [--out DIR] [--wheels DIR] [--small]
    python -m perf.gpu --stored

Parts: attention fused update deepspeed sampler train half_billion, and on request one_gpu (perf/gpu/part.py has their
time limits). Each runs in a process of its own and writes gpu_PART.json (perf/results unless --out says where), also
when it fails, misses a package or runs out of time; the others go on. Exit code 1 when one did not work; a part whose
package is missing does not count. `--small` runs every part on the CPU at a small size, which says that the code runs
and nothing about a GPU; its files go to build/gpu_small. `--wheels` takes packages from a folder of wheels
(perf/gpu_wheels.py). `--stored` prints the results that are kept, and for each part without one that it has not run on
a GPU.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from perf.gpu.part import LIMITS, TEN_MINUTES
from perf.gpu_wheels import install
from tepo.training.probes.record import Figure, supervise

ROOT = Path(__file__).resolve().parents[2]
RESULTS, SMALL = ROOT / "perf" / "results", ROOT / "build" / "gpu_small"
NEVER = "not yet run on a GPU"
PUBLISHED = "published beside: prime-rl, Qwen3-0.6B RL, 16k tokens, one H100: MFU 11.1%, 11.9k tokens/s, 12.5 GiB"
_PATIENCE = 4  # times the limit for the small form: a shared CPU may be busy
_HEAD = f"{'':76} {'unit':12} {'ours':>11} {'limit':>11} {'ratio':>7}"


def table(found: dict[str, Any]) -> list[str]:
    """The lines of one part."""
    where = found["machine"].get("device", "")
    versions = ", ".join(f"{name} {found['machine'][name]}" for name in ("torch", "triton") if name in found["machine"])
    ended = " ".join(word for word in (found["state"], found["note"] and f"({found['note']})") if word)
    lines = [f"{found['part']}: {ended}, {found['seconds']:.0f} s, {where}, {versions}"]
    for values in found["figures"]:
        one = Figure(**values)
        limit = "" if one.limit is None else f"{one.limit:11.4g}"
        ratio = "" if one.ratio is None else f"{one.ratio:7.3g}"
        verdict = "" if not one.must else "holds" if one.holds else "WRONG"
        ours = f"{one.name:74} {one.unit:12} {one.ours:11.4g}"
        lines.append(f"  {ours} {limit:>11} {ratio:>7} {verdict:5} {one.note}".rstrip())
    return lines


def stored(folder: Path) -> list[str]:
    """What is kept of each part. A result of a CPU is none."""
    lines = [_HEAD]
    for part in LIMITS:
        path = folder / f"gpu_{part}.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        on_gpu = found and found["machine"].get("device", "cpu") != "cpu"
        lines += table(found) if on_gpu else [f"{part}: {NEVER}"]
    return [*lines, PUBLISHED]


def run(parts: list[str], folder: Path, small: bool) -> bool:
    """Run the parts one after the other; True when every one worked or misses a package."""
    print(_HEAD, flush=True)
    states, begun = [], time.monotonic()
    for part in parts:
        path = folder / f"gpu_{part}.json"
        words = ["perf.gpu.part", part, str(path), *(["--small"] if small else [])]
        found = supervise(words, part, path, LIMITS[part] * (_PATIENCE if small else 1))
        states.append(found["state"])
        print("\n".join(table(found)), flush=True)
    print(PUBLISHED)
    print(f"{time.monotonic() - begun:.0f} s: " + ", ".join(f"{p} {s}" for p, s in zip(parts, states, strict=True)))
    return set(states) <= {"works", "missing"}


def gpu_here() -> bool:
    """Whether torch, where there is one, sees a GPU."""
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m perf.gpu", description=__doc__, formatter_class=raw)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--stored", action="store_true")
    given = parser.parse_args()
    unknown = set(given.parts) - LIMITS.keys()
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; parts: {', '.join(LIMITS)}")
    folder = given.out or (SMALL if given.small else RESULTS)
    if given.stored:
        print("\n".join(stored(folder)))
        return
    if not given.small and not gpu_here():
        parser.error("no GPU here: --small runs every part on the CPU at a small size, --stored prints what is kept")
    with tempfile.TemporaryDirectory() as site:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        if given.wheels:
            install(given.wheels, Path(site))
            paths.insert(0, site)
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        if given.small:
            os.environ["OMP_NUM_THREADS"] = "1"
        sys.exit(0 if run(given.parts or [*TEN_MINUTES], folder.resolve(), given.small) else 1)


if __name__ == "__main__":
    main()
