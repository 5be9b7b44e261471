"""Software and machines that made the results on a page, in words, from the sessions of `tepo.common.provenance`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tepo.common.provenance import PACKAGES

Session = Mapping[str, Any]
NAMES = {"tepo": "tepo", "python": "Python", **dict.fromkeys(PACKAGES), "vllm": "vLLM", "deepspeed": "DeepSpeed"}
_WIDEST = {"amx_bf16": "AVX-512, AMX", "avx512f": "AVX-512", "avx2": "AVX2", "sve": "SVE", "asimd": "NEON"}


def made_by(sessions: Sequence[Session]) -> list[str]:
    """A line for each software and hardware behind the results: which, from when to when (UTC)."""
    groups: dict[str, list[Session]] = {}
    for session in sessions:
        groups.setdefault(f"{_software(session)}; {_hardware(session)}", []).append(session)
    return [f"{words}; {_dates(group)}." for words, group in groups.items()]


def mixed(sessions: Sequence[Session]) -> str | None:
    """One line that says in what the versions or machines behind a table differ; None where they are the same."""
    said = [f"{label} {' and '.join(values)}" for label, values in _values(sessions).items() if len(values) > 1]
    return f"These rows were made by different versions or machines: {'; '.join(said)}." if said else None


def _values(sessions: Sequence[Session]) -> dict[str, list[str]]:
    """Label -> the different values, in order of appearance. Hosts are left out: machines of one make count as one."""
    values_of = {name or key: [_shown(session.get(key)) for session in sessions] for key, name in NAMES.items()}
    values_of["commit"] = [_commit(session) or "none" for session in sessions]
    values_of["threads"] = [_shown(session.get("threads")) for session in sessions]
    values_of["CPU"] = [cpu(session) for session in sessions]
    values_of["GPUs"] = [_shown(session.get("gpus")) for session in sessions]
    return {label: list(dict.fromkeys(values)) for label, values in values_of.items()}


def _software(session: Session) -> str:
    versions = [f"{name or key} {session[key]}" for key, name in NAMES.items() if session.get(key)]
    commit = _commit(session)
    if not versions:
        return "unknown versions"
    return ", ".join([versions[0] + (f" (commit {commit})" if commit else ""), *versions[1:]])


def _commit(session: Session) -> str:
    """Twelve digits of the commit, and whether something differs from it."""
    commit = str(session.get("commit") or "")[:12]
    return commit + (", changed" if commit and session.get("dirty") else "")


def _hardware(session: Session) -> str:
    threads = session.get("threads")
    parts = [f"{threads} thread{'' if threads == 1 else 's'} on {cpu(session)}"]
    return ", ".join(parts + ([f"{_shown(session['gpus'])} in the machine"] if session.get("gpus") else []))


def cpu(session: Session) -> str:
    """The name of a CPU with its widest vector instructions, by which results differ in their last digits."""
    flags = str(session.get("flags") or "").split()
    widest = next((shown for flag, shown in _WIDEST.items() if flag in flags), "")
    return f"{session.get('cpu') or 'an unknown CPU'}" + (f" ({widest})" if widest else "")


def _dates(sessions: Sequence[Session]) -> str:
    """First start and last end, to the minute."""
    starts = sorted(str(session.get("started")) for session in sessions)
    ends = sorted(str(session["ended"]) for session in sessions if session.get("ended"))
    return f"{_minute(starts[0])} to {_minute(ends[-1]) if ends else '(no end on record)'} UTC"


def _minute(time: str) -> str:
    return time[:16].replace("T", " ")


def _shown(value: Any) -> str:
    """A version, a number, or a list of GPUs counted by name."""
    if isinstance(value, list):
        counted = {name: value.count(name) for name in dict.fromkeys(map(str, value))}
        return ", ".join(f"{count} x {name}" for name, count in counted.items()) or "none"
    return "none" if value is None else str(value)
