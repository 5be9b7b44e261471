"""Benchmarks as declared in `evals/*.yaml`, one file each; the file's name is the benchmark's name.

Schema: docs/evaluation.md."""

import re
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tepo.common import paths
from tepo.common.errors import UserError, unknown_name
from tepo.common.files import content_hash
from tepo.common.schema import REQUIRED, Exclusive, derived, option, read
from tepo.common.schema.document import load
from tepo.config.own_reward import read_prompt
from tepo.problems.grader import GraderOptions
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import template
from tepo.problems.sources import Dataset, Fields, Procedural, content, load_dataset_problems
from tepo.problems.splits import HASH_RANGES

PAPER = ("aime24", "aime25", "amc", "math500", "omni_math", "olympiadbench", "minerva")  # in the order of its tables


@dataclass(frozen=True)
class Subset:
    """A part of the set that some published figures use."""

    without: tuple[str, ...] = option(REQUIRED, "ids of the problems that are not in it")
    note: str = option(REQUIRED, "which figures use it")


@dataclass(frozen=True)
class Benchmark:
    """A problem set and the protocol it is measured by. Exactly one of `procedural` and `dataset` says where the
    problems come from."""

    title: str = option(REQUIRED, "name in tables")
    count: int = option(REQUIRED, "number of problems", low=1)
    samples: int = option(REQUIRED, "responses a problem", low=1)
    temperature: float = option(REQUIRED, "of the responses; 0: greedy", low=0)
    max_new_tokens: int = option(REQUIRED, "limit of a response", low=1)
    procedural: Procedural | None = option(None, "problems that are generated")
    dataset: Dataset | None = option(None, "problems that exist")
    prompt: str = option("raw", "the statement alone, boxed: with the instruction to box, or text with {problem}")
    hash: str | None = option(None, "pins the content (tepo.problems.hashes.set_hash); a shipped set must have it")
    grader: GraderOptions = option(GraderOptions(), "what differs from the grader's defaults")
    tolerances: dict[str, float] = option({}, "problem id: absolute slack on its numbers", low=Exclusive(0))
    subsets: dict[str, Subset] = option({}, "name: a part of the set that is scored by itself too")
    provenance: str = option("", "where the problems come from")
    licence: str = option("", "of the problems")
    defects: tuple[str, ...] = option((), "what is known to be wrong with them")
    name: str = derived("", "the file's name names the benchmark")
    without: tuple[str, ...] = derived((), "parts of a benchmark go under `subsets`")

    def load_problems(self) -> list[Problem]:
        """The problems, checked against `count` and `hash`. Raises UserError when they are not there or not the pinned
        ones."""
        if self.procedural:
            from tepo.problems.procedural.generator import generate

            source = self.procedural
            problems = generate(source.tasks, self.count, source.seed, source.split)
        else:
            assert self.dataset
            problems = load_dataset_problems(self.dataset, self.name.partition(":")[0], self.count, self.hash)
        return [problem for problem in problems if problem.id not in self.without]

    def validation(self, count: int) -> "Benchmark":
        """A generated one on so many problems of the validation split, which no training, base or test set holds."""
        assert self.procedural
        source = replace(self.procedural, split="validation", seed=_VALIDATION_SEED)
        return replace(self, procedural=source, count=count)

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of everything here that can change the responses; of a set without a hash, what its rows are now.
        Raises UserError for a file of problems that is missing or broken."""
        if self.procedural:
            source: dict[str, Any] = {"procedural": vars(self.procedural), "hash": HASH_RANGES[self.procedural.split]}
        elif self.hash or not self.dataset:
            source = {"hash": self.hash}
        else:
            source = {"rows": content(self.dataset, self.name.partition(":")[0])}
        sampling = [self.count, self.samples, self.temperature, self.max_new_tokens]
        return content_hash([source, sampling, template(self.prompt), sorted(self.without)])

    @cached_property
    def grading(self) -> str:
        """Short hash of what is declared here about verdicts; the grader's own fingerprint says the rest."""
        plain = GraderOptions()
        options = asdict(self.grader).items()
        chosen = {key: value for key, value in options if value != getattr(plain, key) and key != "workers"}
        return content_hash([chosen, self.tolerances])


_VALIDATION_SEED = 1  # the same in every run: so runs are compared on the same problems
_FRESH = re.compile(r"problems(0|[1-9][0-9]*)")
_SHORTER = re.compile(r"tokens([1-9][0-9]*)")


def load_benchmark(name: str) -> Benchmark:
    """The benchmark `NAME`, or `NAME:SUBSET` for one of its subsets; `NAME:problemsSEED`: a generated one with other
    problems of its split, drawn from that seed; `NAME:tokensN`: with responses of at most N tokens. Raises UserError
    for unknown names and broken files."""
    stem, _, subset = name.partition(":")
    path = paths.find("evals", stem)
    benchmark = parse_benchmark(path)
    if not subset:
        return benchmark
    name = f"{path.stem}:{subset}"
    if benchmark.procedural and (fresh := _FRESH.fullmatch(subset)):
        return replace(benchmark, name=name, procedural=replace(benchmark.procedural, seed=int(fresh[1])))
    if limit := _SHORTER.fullmatch(subset):
        title = f"{benchmark.title}, {int(limit[1]):,} tokens"  # a table must not show it as the full protocol
        return replace(benchmark, name=name, title=title, max_new_tokens=int(limit[1]))
    if not benchmark.subsets:
        raise UserError(f"{stem} has no subsets", where=str(path), fix=f"name it as {stem}")
    if subset not in benchmark.subsets:
        raise unknown_name(f"subset of {stem}", subset, benchmark.subsets, where=str(path))
    return replace(benchmark, name=name, without=benchmark.subsets[subset].without)


def parse_benchmark(path: Path) -> Benchmark:
    """Read and check one file of `evals/`."""
    document = load(path)
    benchmark = read(Benchmark, document.data, document.at)
    prompt = read_prompt(benchmark.prompt, path.parent, document.at.at("prompt"))
    benchmark = replace(benchmark, name=path.stem, prompt=prompt)
    if (benchmark.procedural is None) == (benchmark.dataset is None):
        raise document.at.error("needs exactly one of `procedural` and `dataset`")
    if dataset := benchmark.dataset:
        if dataset.path.endswith(".jsonl"):  # a file of problems, below the folder of this one
            if dataset.fields != Fields():
                what = "`fields` is for sets of the hub, and this one is a file of problems"
                fix = 'name its columns "id", "problem" and "answer"'
                raise document.at.at("dataset").at("fields").error(what, fix=fix)
            below = str(path.parent / Path(dataset.path).expanduser())
            benchmark = replace(benchmark, dataset=replace(dataset, path=below))
        if not benchmark.hash and (paths.shipped("evals") / path.name).is_file():
            fix = "give its hash, or give the file a name of its own"
            raise document.at.error("a benchmark that ships with tepo is pinned: `hash` is missing", fix=fix)
    if benchmark.temperature == 0 and benchmark.samples > 1:
        what = "greedy (temperature 0) with more than one sample a problem repeats the same response"
        raise document.at.at("samples").error(what, fix="samples: 1")
    return benchmark
