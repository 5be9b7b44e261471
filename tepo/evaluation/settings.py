"""Settings that a result depends on beside the benchmark, and reports of how far an evaluation is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tepo.common.errors import UserError
from tepo.config.run_config import RunConfig
from tepo.problems.benchmarks import Benchmark
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import AskedPrompts, encode_prompts
from tepo.problems.training_sets import system_of

Report = Callable[[str, int, int], None]
"""Called with a benchmark, its rows done and its rows in all, as they come; from any thread."""


def silent(benchmark: str, rows: int, total: int) -> None:
    """A report to nobody."""


@dataclass(frozen=True)
class Settings:
    """Stored with a result, and compared when it is asked for again."""

    policy: Mapping[str, Any] = field(default_factory=dict)  # JSON-able identity of the weights (path, step, hash)
    # of the draws of a problem, which depend on (seed, benchmark, problem id) alone, so a limited run or a subset gives
    # the same responses; one for every row and run, so that rows are compared on the same draws
    seed: int = 0
    limit: int | None = None  # only the first problems
    wrap: str = "auto"  # see tepo.problems.prompt_format, as for thinking
    thinking: bool | None = None
    system: str = ""  # what the system says before a problem that brings no system prompt and is not asked raw
    # that the embedded sampler decodes together; of other samplers, the most that have ended and are not on disk
    rows_per_part: int = 256

    def compared(self) -> dict[str, Any]:
        """Settings that make a finished result one of other weights or other prompts."""
        return {"policy": dict(self.policy), "wrap": self.wrap, "thinking": self.thinking, "system": self.system}

    def encode(self, benchmark: Benchmark, problems: Sequence[Problem], tokenizer: Any) -> AskedPrompts:
        """The prompts of problems of a benchmark, checked (`encode_prompts`). Raises UserError, too, as `form` does."""
        return encode_prompts(self.with_system(benchmark, problems), tokenizer, **self.form(benchmark))

    def form(self, benchmark: Benchmark) -> dict[str, Any]:
        """How the problems of a benchmark are asked: `prompt`, `wrap` and `thinking`. Raises UserError for a benchmark
        in another mode than these settings say."""
        thinking = self.thinking if benchmark.thinking is None else benchmark.thinking
        if self.thinking not in (None, thinking):
            word = "--thinking" if thinking else "--no-thinking"
            what = f"{benchmark.name} takes {word}, and the other mode is chosen"
            raise UserError(what, where="--thinking, or model.thinking of the run", fix=f"{word}, or another protocol")
        return {"prompt": benchmark.prompt, "wrap": self.wrap, "thinking": thinking}

    def with_system(self, benchmark: Benchmark, problems: Sequence[Problem]) -> Sequence[Problem]:
        """The problems with what the system says before those that bring nothing of their own."""
        if not self.system or benchmark.prompt == "raw":
            return problems
        return [replace(problem, system=problem.system or self.system) for problem in problems]


def asked_by(config: RunConfig) -> dict[str, Any]:
    """The settings by which a run, or its base, is asked what benchmarks ask: as it is asked in training."""
    return {"wrap": config.model.wrap, "thinking": config.model.thinking, "system": system_of(config.data)}
