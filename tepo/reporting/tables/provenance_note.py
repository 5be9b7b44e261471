"""Software and machines that made the results on a page, in words, from the sessions of `tepo.common.provenance`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tepo.common.grouping import grouped
from tepo.common.provenance import PACKAGES

Session = Mapping[str, Any]
NAMES = {"tepo": "tepo", "python": "Python", **dict.fromkeys(PACKAGES), "vllm": "vLLM", "deepspeed": "DeepSpeed"}
_WIDEST = {"amx_bf16": "AVX-512, AMX", "avx512f": "AVX-512", "avx2": "AVX2", "sve": "SVE", "asimd": "NEON"}


def made_by(sessions: Sequence[Session]) -> list[str]:
    """A line for each software and hardware behind the results: which, from when to when (UTC)."""
    values, lines = map(_values, sessions), []
    texts = (", ".join(f"{label} {value}" for label, value in of.items() if value != "none") for of in values)
    for words, group in grouped(zip(texts, sessions, strict=True)).items():
        start = min(str(session.get("started")) for session in group)
        end = max((str(session["ended"]) for session in group if session.get("ended")), default="(no end on record)")
        first, last = (time[:16].replace("T", " ") if "T" in time else time for time in (start, end))
        lines.append(f"{words}; {first} to {last} UTC.")
    return lines


def mixed(sessions: Sequence[Session]) -> str | None:
    """One line that says in what the versions or machines behind a table differ; None where they are the same."""
    every = list(map(_values, sessions))
    labels = dict.fromkeys(chain(*every))  # sessions before a sampler opened do not say its parts
    values_of = {label: dict.fromkeys(values[label] for values in every if label in values) for label in labels}
    differences = [f"{label} {' and '.join(values)}" for label, values in values_of.items() if len(values) > 1]
    return f"These rows were made by different versions or machines: {'; '.join(differences)}." if differences else None


def _values(session: Session) -> dict[str, str]:
    """Facts that may decide the digits of a result, by label. Hosts are left out: machines of one make count as one."""
    commit = str(session.get("commit") or "")[:12]
    gpus = Counter(map(str, session.get("gpus") or ())).items()
    values = {name or key: session.get(key) for key, name in NAMES.items()}
    values |= {
        "commit": commit and commit + ", changed" * bool(session.get("dirty")),
        "threads": session.get("threads"),
    }
    values |= {"CPU": cpu(session), "GPUs": ", ".join(f"{count} x {name}" for name, count in gpus)}
    engine = {"vLLM's engine": ", ".join(map(str, session["sampler"].values()))} if session.get("sampler") else {}
    return {label: str(value or "none") for label, value in values.items()} | engine


def cpu(session: Session) -> str:
    """The name of a CPU with its widest vector instructions, by which results differ in their last digits."""
    flags = str(session.get("flags") or "").split()
    widest = next((label for flag, label in _WIDEST.items() if flag in flags), "")
    return f"{session.get('cpu') or 'an unknown CPU'}" + (f" ({widest})" if widest else "")
