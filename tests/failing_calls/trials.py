"""Trials: one run with its evaluation, page and record, in which a call on a file fails, or the process dies before it.

The commands are those a user types, forked by a process that has imported everything; a trial begins where those before
it have left an undisturbed store. What a fault leaves behind is compared, and the same command is called once more:
then the folder must be the undisturbed one, but for times. Faults that leave the same behind share that call. A death
leaves what was on disk at that moment, so that all deaths are copies of one run's folder.
"""

import contextlib
import errno
import hashlib
import importlib
import json
import os
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import vl_convert

from tepo.common import paths
from tepo.config.compose import compose
from tepo.training.metrics.metrics_log import VOLATILE
from tests.failing_calls.supervisor import Call, Ended, Verdict, supervised
from tests.support.commands import WARM
from tests.support.runs import write, write_study

_WORDS = ["train.steps=2", "train.prompts_per_step=8", "train.samples_per_prompt=4", "train.mini_batch_prompts=8"]
_WORDS += ["train.max_new_tokens=40", "train.checkpoint_every=1", "data.benchmarks=[add3]"]
_TRAIN = ("train", "objective=gspo", *_WORDS, "--quiet")
COMMANDS = {
    "train": _TRAIN,
    "evaluate": (*_TRAIN, "--evaluate"),
    "page": ("report", "mine", "--out", "page.html"),
    "record": ("records", "write", "mine"),
}
DEATH = "death"
_SAMPLED = {  # of each a few calls, evenly spread; ENOSPC and death have every call
    "write": ("EIO",),
    "fsync": ("EIO",),
    "rename": ("EIO", "EACCES"),
    "unlink": ("EACCES",),
    "mkdir": ("EACCES",),
    "open": ("EIO", "EACCES"),
    "lock": ("ENOSYS", "ENOLCK"),
}
_SAMPLE = 3
_BATCH = 40  # trials between two looks at what they left
SAME, MESSAGE = "same bits", "message"


class Place(NamedTuple):
    """A call in one of the commands: which one of this kind on this path it is, from 1 on."""

    command: str
    call: Call
    nth: int


class Outcome(NamedTuple):
    """A trial. ended: SAME, MESSAGE, or else what was bad."""

    place: Place
    fault: str
    ended: str

    @property
    def bad(self) -> bool:
        return self.ended not in (SAME, MESSAGE)


def run_trials(folder: Path, every: int = 1, workers: int = 2) -> Iterator[Outcome]:
    """All trials in an empty folder, each outcome as it comes. every: only each so-manieth trial of a fault."""
    for name in WARM:
        importlib.import_module(name)
    compose(["objective=gspo", *_WORDS])  # Hydra's part of it is kept
    # charts, which have a hash of what they show, are not drawn: in a new process that takes longer than all else
    vl_convert.vegalite_to_svg = lambda made: "<svg></svg>"
    vl_convert.javascript_bundle = lambda *given, **named: ""
    bench = _Bench(folder)
    deaths = {place: key for command in COMMANDS for place, key in bench.record(command).items()}
    again: dict[tuple[str, str], str] = {}
    dead = list(deaths.items())[::every]
    disturbed = list(_faults(list(deaths)))[::every]
    with ProcessPoolExecutor(workers, get_context("fork")) as pool:

        def ends(left: set[tuple[str, str]]) -> None:
            new = [one for one in left if one not in again]
            again.update(zip(new, pool.map(bench.again, *zip(*new, strict=True)) if new else (), strict=True))

        ends({(place.command, key) for place, key in dead})
        yield from (Outcome(place, DEATH, again[place.command, key]) for place, key in dead)
        for first in range(0, len(disturbed), _BATCH):
            batch = disturbed[first : first + _BATCH]
            found = list(pool.map(bench.disturbed, *zip(*batch, strict=True)))
            ends({(place.command, key) for (place, _), (_, key) in zip(batch, found, strict=True)})
            for (place, fault), (ended, key) in zip(batch, found, strict=True):
                after = again[place.command, key]
                yield Outcome(place, fault, ended if after == SAME else f"{ended}; the same command again: {after}")


def _faults(places: list[Place]) -> Iterator[tuple[Place, str]]:
    """Each call with the faults that it meets, but for death."""
    by_kind = defaultdict(list)
    for place in places:
        by_kind[place.call.kind].append(place)
        if place.call.kind != "lock":  # some file systems need space to unlink, too
            yield place, "ENOSPC"
    for kind, names in _SAMPLED.items():
        found = by_kind[kind]
        step = max(1, len(found) // _SAMPLE)
        for offset, name in enumerate(names):
            yield from ((place, name) for place in found[offset % step :: step])


class _Bench:
    """The user's folder before and after each command, and what faults left of it, by the key of its state."""

    def __init__(self, folder: Path):
        self.folder = folder
        home = self._before("train")
        benchmark = (paths.shipped("evals") / "add3.yaml").read_text().partition("hash:")[0]
        write(home / "evals/add3.yaml", benchmark.replace("count: 200\n", "count: 4\n"))
        write_study(home, "mine", {"GSPO": "gspo"}, *_WORDS, baseline="GSPO")

    def record(self, command: str) -> dict[Place, str]:
        """Run a command undisturbed. Returns its calls, each with the key of the folder as it was before the call."""
        home = self._after(command)
        shutil.copytree(self._before(command), home)
        found: dict[Place, str] = {}
        met: Counter[Call] = Counter()

        def look(call: Call) -> int:
            call = call._replace(path=lasting_name(call.path))
            met[call] += 1
            found[Place(command, call, met[call])] = self._keep(command, home)
            return 0

        ended = _call(command, home, look)
        assert ended.code == 0, ended.said
        return found

    def disturbed(self, place: Place, fault: str) -> tuple[str, str]:
        """Run a command with one fault. Returns how it ended, and the key of the folder that it left."""
        home = self._copy(self._before(place.command))
        met = 0

        def fail(call: Call) -> int:
            nonlocal met
            same = met < place.nth and call._replace(path=lasting_name(call.path)) == place.call
            met += same
            return getattr(errno, fault) if same and met == place.nth else 0

        ended = _call(place.command, home, fail)
        key = self._keep(place.command, home)
        how = _judged(ended)
        if met < place.nth:
            how = "the call was not made"
        if how == SAME:
            state, wanted = read_state(home), read_state(self._after(place.command))
            missing = {name: there for name, there in wanted.items() if state.get(name) != there}
            how = f"exit code 0 without {', '.join(missing)}" if missing else SAME
        shutil.rmtree(home)
        return how, key

    def again(self, command: str, key: str) -> str:
        """Call a command on what a fault has left. Returns SAME, or what is bad."""
        home = self._copy(self._left(command, key))
        ended = _call(command, home, lambda call: 0)
        state, wanted = read_state(home), read_state(self._after(command))
        shutil.rmtree(home)
        if ended.code:
            return f"exit code {ended.code}: {ended.said.strip()[-600:]}"
        different = sorted(name for name in state.keys() | wanted.keys() if state.get(name) != wanted.get(name))
        return f"another folder: {', '.join(different)}" if different else SAME

    def _before(self, command: str) -> Path:
        return self.folder / f"before {command}"

    def _after(self, command: str) -> Path:
        names = [*COMMANDS, "end"]
        return self._before(names[names.index(command) + 1])

    def _left(self, command: str, key: str) -> Path:
        return self.folder / f"left by {command}" / key

    def _copy(self, folder: Path) -> Path:
        """A copy in which one process works."""
        home = self.folder / f"trial {os.getpid()}"
        shutil.copytree(folder, home)
        return home

    def _keep(self, command: str, home: Path) -> str:
        """Keep a copy of a folder, unless there is one of its state. Returns the key.

        A call of another thread that was let go may still be under way, such as a rename: until it has ended, a file
        that was listed can be gone, so the folder is read again. That thread's next call waits for its own turn."""
        while True:
            half = self._left(command, f"half of {os.getpid()}")
            try:
                key = key_of(read_state(home, leftovers=True))
                if (kept := self._left(command, key)).exists():
                    return key
                shutil.copytree(home, half)
                if key_of(read_state(half, leftovers=True)) == key:
                    break
            except (FileNotFoundError, shutil.Error):
                pass
            shutil.rmtree(half, ignore_errors=True)
        try:
            half.rename(kept)
        except OSError:  # another worker was first
            shutil.rmtree(half)
        return key


def _call(command: str, home: Path, verdict: Verdict) -> Ended:
    """Call a command in a folder."""

    def work() -> None:
        from tepo_cli.main import main

        os.chdir(home)
        os.environ["TEPO_PATH"] = "."
        sys.argv = ["tepo", *COMMANDS[command]]
        main()

    return supervised(work, home, verdict)


def _judged(ended: Ended) -> str:
    """How a command with a fault ended: SAME where it says that all went well."""
    if "Traceback" in ended.said or ended.code < 0 or (ended.code and ended.said.count("error: ") != 1):
        return f"exit code {ended.code}: {ended.said.strip()[-600:]}"
    return MESSAGE if ended.code else SAME


# The content of a user's folder but for what differs between two equal runs: times, costs, versions and random names. A
# process writes at its end what it has cost, so that one that dies leaves nothing of it.
State = dict[str, str]
"""Hex digest by name of the file, "folder" of an empty folder."""

_RANDOM = re.compile(r"\.[0-9a-f]{8}(?=/|$)|(?<=/\.tmp)\w{6}(?=/|$)")  # ends of names: ours, and those of safetensors


def lasting_name(path: str) -> str:
    """A path without the random parts that hidden names have."""
    return _RANDOM.sub("~", path)


def read_state(home: Path, *, leftovers: bool = False) -> State:
    """leftovers: also hidden files and folders outside of the store, which no lock guards: nobody reads or removes
    what a process that died left of a page or of records."""
    state: State = {}
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        if path.name == "cost.json" or path.name.endswith(".lock") or (path.is_dir() and any(path.iterdir())):
            continue
        lasting = lasting_name(name)
        if lasting != name and not leftovers and not name.startswith("runs/"):
            continue
        state[lasting] = "folder" if path.is_dir() else _digest(path)
    return state


def key_of(state: State) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    content = path.read_bytes()
    lasting = next((lasting for end, lasting in _LASTING.items() if path.name.endswith(end)), None)
    if lasting:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # half-written
            content = json.dumps(lasting(content), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()


def _metrics(content: bytes) -> list[dict[str, Any]]:
    rows = map(json.loads, content.decode().splitlines())
    return [{key: value for key, value in row.items() if not key.startswith(VOLATILE)} for row in rows]


def _without(*keys: str) -> Callable[[bytes], dict[str, Any]]:
    return lambda content: {key: value for key, value in json.loads(content).items() if key not in keys}


def _tensors(content: bytes) -> dict[str, Any]:
    """The tensors of a safetensors file by name: the order of its header differs."""
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    for name in header.keys() - {"__metadata__"}:
        first, last = header[name].pop("data_offsets")
        header[name]["hash"] = hashlib.sha256(data[first:last]).hexdigest()
    return header


_LASTING: dict[str, Callable[[bytes], Any]] = {
    "metrics.jsonl": _metrics,
    "manifest.json": _without("time"),
    "progress.json": _without("sha256", "own_sha256"),
    "provenance.json": lambda content: isinstance(json.loads(content)["sessions"], list),
    ".safetensors": _tensors,
    "README.md": lambda content: [line for line in content.decode().splitlines() if not line.startswith("- tepo ")],
}
