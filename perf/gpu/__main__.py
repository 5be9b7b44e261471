"""A quarter of an hour of one GPU: what of the GPU code works, how fast, against which limit.

    python -m perf.gpu [PART …] [--without PART …] [--out DIR] [--small]
    python -m perf.gpu --stored

Parts, the ones that settle most first: attention fused flash4 layers vllm vllm_head small_lm one_gpu resume sampler
deepspeed, and on request two_gpus update. Each runs in a process of its own with a time limit. What was found stands in
one file, gpu_CARD.json (perf/results unless --out says where), after each part, also when it fails, misses a package or
runs out of time; the others go on. The file holds versions, card, driver, figures and cleaned messages, and nothing of
whose machine it was: send it back (docs/gpu.md). Exit code 1 when a part did not work; a missing package is no excuse,
but `--without` leaves parts out by name. A part whose hardware or model is missing is not run, and does not count.
`--small` runs every part on the CPU at a small size, which says that the code runs and nothing about a GPU; its file
goes to build/gpu_small. `--stored` prints the results that are kept, and for each part without one that it has not run
on a GPU.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from perf.gpu.record import Figure, record, supervise
from tepo.common.files import write_json

ROOT = Path(__file__).resolve().parents[2]
RESULTS, SMALL = ROOT / "perf" / "results", ROOT / "build" / "gpu_small"
USUAL = {  # in the order in which they run: the file with the part's function, and its time limit in seconds
    "attention": ("kernels", 30),
    "fused": ("kernels", 30),
    "flash4": ("kernels", 150),  # which compiles a kernel for each direction and each kind of window
    "layers": ("kernels", 120),
    # two cold starts of vllm, each with 20 to 40 s of imports, and up to 100 of profiling, compiling and graphs
    # (39 s in vllm-project/vllm#11005; 63 before graphs in kubernetes-sigs/gateway-api-inference-extension#550; 8B, 7B)
    "vllm": ("vllm", 420),
    "vllm_head": ("vllm", 180),
    "small_lm": ("small_lm", 400),
    "one_gpu": ("updates", 120),
    "resume": ("runs", 60),
    "sampler": ("sampler", 60),
    "deepspeed": ("runs", 90),
}
PARTS = USUAL | {"two_gpus": ("vllm", 1200), "update": ("updates", 200)}
NEVER = "not yet run on a GPU"
PUBLISHED = "published beside: prime-rl, Qwen3-0.6B RL, 16k tokens, one H100: MFU 11.1%, 11.9k tokens/s, 12.5 GiB"
_PATIENCE = 4  # times the limit for the small form: a shared CPU may be busy
_LEFT_MIB = 256.0  # allocated after a part: above cuBLAS's workspaces, below the weights of any model that is trained
_HEAD = f"{'':76} {'unit':12} {'ours':>11} {'limit':>11} {'ratio':>7}"


def measure(name: str, small: bool) -> Iterator[Figure]:
    """The figures of a part, on the GPU where there is one, and last what it leaves allocated."""
    import torch

    from perf.gpu.timing import allocated

    device = "cuda" if torch.cuda.is_available() and not small else "cpu"
    yield from getattr(import_module(f"perf.gpu.{PARTS[name][0]}"), name)(device, small)
    yield Figure("still allocated after its close", "MiB", allocated(device) / 2**20, _LEFT_MIB, "<=")


def table(found: dict[str, Any]) -> list[str]:
    """The lines of one part."""
    machine = found["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("torch", "triton", "vllm") if name in machine)
    ended = f"{found['state']} ({found['note']})" if found["note"] else found["state"]
    lines = [f"{found['part']}: {ended}, {found['seconds']:.0f} s, {machine.get('device', '')}, {versions}"]
    for values in found["figures"]:
        one = Figure(**values)
        limit = "" if one.limit is None else f"{one.limit:11.4g}"
        ratio = "" if one.ratio is None else f"{one.ratio:7.3g}"
        verdict = "" if not one.must else "holds" if one.holds else "WRONG"
        ours = f"{one.name:74} {one.unit:12} {one.ours:11.4g}"
        lines.append(f"  {ours} {limit:>11} {ratio:>7} {verdict:5} {one.note}".rstrip())
    return lines


def stored(folder: Path) -> list[str]:
    """Lines of the results that are kept of each part, of every card. A result of a CPU is none."""
    kept = [
        part for path in sorted(folder.glob("gpu_*.json")) for part in json.loads(path.read_text())["parts"].values()
    ]
    on_gpu = [one for one in kept if one["machine"].get("device", "cpu") != "cpu"]
    lines = [line for one in on_gpu for line in table(one)]
    never = [f"{part}: {NEVER}" for part in PARTS if part not in {one["part"] for one in on_gpu}]
    return [_HEAD, *lines, *never, PUBLISHED]


def run(parts: list[str], folder: Path, card: str, small: bool) -> bool:
    """Run the parts one after the other; True when each worked that has its hardware and model here."""
    print(_HEAD, flush=True)
    states, begun = [], time.monotonic()
    path = folder / f"gpu_{re.sub(r'[^a-z0-9]+', '_', card.lower()).strip('_')}.json"
    found = json.loads(path.read_text())["parts"] if path.exists() else {}
    for part in parts:
        own = path.with_name(f".{path.name}.{part}")
        words = ["perf.gpu", part, "--into", str(own), *(["--small"] if small else [])]
        found[part] = supervise(words, part, own, PARTS[part][1] * (_PATIENCE if small else 1))
        own.unlink(missing_ok=True)
        write_json(path, {"parts": found})
        states.append(found[part]["state"])
        print("\n".join(table(found[part])), flush=True)
    print(PUBLISHED)
    print(f"the figures to send back: {path}")
    print(f"{time.monotonic() - begun:.0f} s: " + ", ".join(f"{p} {s}" for p, s in zip(parts, states, strict=True)))
    return set(states) <= {"works", "not run"}


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m perf.gpu", description=__doc__, formatter_class=raw)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--without", nargs="+", metavar="PART", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--stored", action="store_true")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # the file of one part in this process
    given = parser.parse_args()
    unknown = {*given.parts, *given.without} - PARTS.keys()
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; parts: {', '.join(PARTS)}")
    parts = [part for part in given.parts or USUAL if part not in given.without]
    folder = given.out or (SMALL if given.small else RESULTS)
    if given.stored:
        print("\n".join(stored(folder)))
        return
    if given.into:
        record(parts[0], lambda: measure(parts[0], given.small), given.into)
        return
    card = "cpu"
    if not given.small:
        import torch

        card = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    if not card:
        parser.error("no GPU here: --small runs every part on the CPU at a small size, --stored prints what is kept")
    if given.small:
        os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(0 if run(parts, folder.resolve(), card, given.small) else 1)


if __name__ == "__main__":
    main()
