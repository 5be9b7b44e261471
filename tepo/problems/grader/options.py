"""Options of a grader, and the fingerprint of everything that can change its verdicts."""

import re
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

from tepo.common.errors import UserError, unknown_name
from tepo.common.files import content_hash
from tepo.config.run_config import GraderConfig

FALLBACKS = ("phrase", "formula", "bare")
REVISION = 9
"""Raise on any change that can flip a verdict: stored verdicts carry it in their fingerprint."""

_PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy", "antlr4-python3-runtime")


@dataclass(frozen=True, slots=True)
class GraderOptions:
    """Options of a grader; the defaults are those of training (`grader.*`, with one worker) and of every benchmark that
    asks for nothing else."""

    timeout: float = (
        3.0  # CPU seconds of a worker that one answer may take, however long the wall's clock runs meanwhile
    )
    workers: int = 0  # processes (0: one per usable core, at most 8)
    memory_mb: int = 1024  # address space of a worker
    recycle: int = 2000  # answers after which a worker is replaced
    max_chars: int = 2000  # longer answers are wrong without being parsed
    max_depth: int = 40  # and so are those with brackets nested deeper
    # What to take when a response holds no box at all, in order: "phrase" (… answer is X), "formula" (the last formula
    # of a sentence), "bare" (a short response is the answer itself).
    fallbacks: tuple[str, ...] = ()
    relative_tolerance: float = 0.0  # slack on numbers, 0 except where a benchmark asks for it
    absolute_tolerance: float = 0.0

    def __post_init__(self) -> None:
        for name in self.fallbacks:
            if name not in FALLBACKS:
                raise unknown_name("grader fallback", name, FALLBACKS)
        for name in ("timeout", "memory_mb", "recycle", "max_chars", "max_depth"):
            if not getattr(self, name) > 0:
                raise UserError(f"grader option {name} must be positive, not {getattr(self, name)}")
        for name in ("workers", "relative_tolerance", "absolute_tolerance"):
            if not getattr(self, name) >= 0:
                raise UserError(f"grader option {name} must not be negative")

    @classmethod
    def of_training(cls, config: GraderConfig) -> "GraderOptions":
        """The options that a run trains with."""
        return cls(**{**vars(config), "fallbacks": tuple(config.fallbacks)})

    def fingerprint(self) -> str:
        """One line naming everything that can change a verdict: our revision, the packages under it, the options."""
        chosen = {key: value for key, value in asdict(self).items() if key not in ("workers", "recycle")}
        packages = []
        for name in _PACKAGES:
            try:
                packages.append(f"{name} {version(name)}")
            except PackageNotFoundError:
                packages.append(f"{name} absent")
        return f"grader {REVISION} options {content_hash(chosen, 8)} {' '.join(packages)}"


def revision(fingerprint: str) -> int | None:
    """The revision that gave verdicts with this fingerprint, whatever options and packages it had; None where the
    fingerprint is none of ours."""
    match = re.match(r"grader (\d+) ", fingerprint)
    return int(match[1]) if match else None
