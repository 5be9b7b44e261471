"""Benchmarks as declared in `evals/*.yaml`, one file each; the file's name is the benchmark's name.

Schema: docs/benchmarks.md.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tepo import paths
from tepo.errors import UserError, unknown_name
from tepo.files import content_hash
from tepo.problems.declared import build, read_mapping
from tepo.problems.grader import GraderOptions
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import PROMPTS
from tepo.problems.sources import Dataset, Fields, Procedural, content, load_dataset_problems, load_procedural


@dataclass(frozen=True)
class Subset:
    """A part of the set that some published figures use: every problem except `without`."""

    without: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class Benchmark:
    """A problem set and the protocol it is measured by.

    Exactly one of `procedural` and `dataset` says where the problems come from. `samples` responses a problem are drawn
    at `temperature` (0 = greedy), each at most `max_new_tokens` long. `hash` pins the content
    (tepo.problems.hashes.set_hash), of every shipped set and of a user's own where it is given; `grader` holds what
    differs from the grader's defaults, `tolerances` the absolute slack of single problems, by id.
    """

    title: str
    count: int
    samples: int
    temperature: float
    max_new_tokens: int
    procedural: Procedural | None = None
    dataset: Dataset | None = None
    prompt: str = "raw"
    hash: str | None = None
    grader: GraderOptions = field(default_factory=GraderOptions)
    tolerances: dict[str, float] = field(default_factory=dict)
    subsets: dict[str, Subset] = field(default_factory=dict)
    provenance: str = ""
    licence: str = ""
    defects: tuple[str, ...] = ()
    name: str = ""
    without: tuple[str, ...] = ()

    def load_problems(self) -> list[Problem]:
        """The problems, checked against `count` and `hash`.

        Raises UserError when they are not there or not the pinned ones.
        """
        if self.procedural:
            problems = load_procedural(self.procedural, self.count)
        else:
            assert self.dataset
            problems = load_dataset_problems(self.dataset, self.name.partition(":")[0], self.count, self.hash)
        return [problem for problem in problems if problem.id not in self.without]

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of everything here that can change the responses; of a set without a hash, what its rows are now.

        Raises UserError for a file of problems that is missing or broken.
        """
        if self.procedural:
            source: dict[str, Any] = {"procedural": vars(self.procedural)}
        elif self.hash or not self.dataset:
            source = {"hash": self.hash}
        else:
            source = {"rows": content(self.dataset, self.name.partition(":")[0])}
        sampling = [self.count, self.samples, self.temperature, self.max_new_tokens]
        return content_hash([source, sampling, PROMPTS[self.prompt], sorted(self.without)])

    @cached_property
    def grading(self) -> str:
        """Short hash of what is declared here about verdicts; the grader's own fingerprint says the rest."""
        plain = GraderOptions()
        chosen = {
            key: value
            for key, value in asdict(self.grader).items()
            if value != getattr(plain, key) and key != "workers"
        }
        return content_hash([chosen, self.tolerances])


def load_benchmark(name: str) -> Benchmark:
    """The benchmark `NAME`, or `NAME:SUBSET` for one of its subsets.

    Raises UserError for unknown names and broken files.
    """
    stem, _, subset = name.partition(":")
    path = paths.find("evals", stem)
    benchmark = parse_benchmark(path)
    if not subset:
        return benchmark
    if not benchmark.subsets:
        raise UserError(f"{stem} has no subsets", where=str(path), fix=f"name it as {stem}")
    if subset not in benchmark.subsets:
        raise unknown_name(f"subset of {stem}", subset, benchmark.subsets, where=str(path))
    return replace(benchmark, name=f"{path.stem}:{subset}", without=benchmark.subsets[subset].without)


def benchmark_names() -> list[str]:
    """All benchmarks that can be named, a user's own included."""
    return paths.names("evals")


def parse_benchmark(path: Path) -> Benchmark:
    """Read and check one file of `evals/`."""
    mapping = read_mapping(path)
    for reserved in ("name", "without"):
        if reserved in mapping:
            raise UserError(
                f"key {reserved!r} is not allowed here",
                where=str(path),
                fix="the file's name names the benchmark; parts go under `subsets`",
            )
    benchmark = replace(build(Benchmark, mapping, str(path)), name=path.stem)
    if (benchmark.procedural is None) == (benchmark.dataset is None):
        raise UserError("needs exactly one of `procedural` and `dataset`", where=str(path))
    if benchmark.dataset:
        benchmark = replace(benchmark, dataset=_placed(benchmark.dataset, path))
        if not benchmark.hash and (paths.shipped("evals") / path.name).is_file():
            fix = "give its hash, or give the file a name of its own"
            raise UserError("a benchmark that ships with tepo is pinned: `hash` is missing", where=str(path), fix=fix)
    if benchmark.prompt not in PROMPTS:
        raise unknown_name("prompt", benchmark.prompt, PROMPTS, where=f"{path}, key prompt")
    for key in ("count", "samples", "max_new_tokens"):
        if getattr(benchmark, key) < 1:
            raise UserError(f"{key} must be at least 1, not {getattr(benchmark, key)}", where=str(path))
    if any(slack <= 0 for slack in benchmark.tolerances.values()):
        raise UserError("tolerances must be positive", where=str(path), fix="leave out problems without a tolerance")
    if benchmark.temperature < 0:
        raise UserError(f"temperature must not be negative, not {benchmark.temperature}", where=str(path))
    if benchmark.temperature == 0 and benchmark.samples > 1:
        raise UserError(
            "greedy (temperature 0) with more than one sample a problem repeats the same response",
            where=str(path),
            fix="samples: 1",
        )
    return benchmark


def _placed(dataset: Dataset, declaration: Path) -> Dataset:
    """The data set with its file of problems, if it is one, below the folder of the file that declares it."""
    if not dataset.path.endswith(".jsonl"):
        return dataset
    if dataset.fields != Fields():
        fix = 'name its columns "id", "problem" and "answer"'
        raise UserError(
            "`fields` is for sets of the hub, and this one is a file of problems", where=str(declaration), fix=fix
        )
    return replace(dataset, path=str(declaration.parent / Path(dataset.path).expanduser()))
