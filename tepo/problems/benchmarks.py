"""Benchmarks as declared in `evals/*.yaml`, one file each; the file's name is the benchmark's name.

How others sample is in `evals/protocols/*.yaml`. Schema: docs/evaluation.md."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from tepo.common import paths
from tepo.common.errors import UserError, unknown_name
from tepo.common.files import content_hash
from tepo.common.schema import REQUIRED, Exclusive, Keys, Location, derived, option, read
from tepo.common.schema.document import load
from tepo.common.text import counted
from tepo.config.own_reward import read_prompt
from tepo.config.run_config import DataConfig
from tepo.problems.grader import GraderOptions
from tepo.problems.hashes import set_hash
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import template
from tepo.problems.sources import Dataset, Fields, Procedural, content, load_dataset_problems
from tepo.problems.splits import HASH_RANGES, Split

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
    min_p: float = option(0.0, "draw no token with less than so much of the likeliest one's probability", low=0, high=1)
    top_k: int = option(0, "draw only from so many of the likeliest tokens; 0: from all", low=0)
    top_p: float = option(1.0, "draw only from the likeliest tokens that reach this sum", low=Exclusive(0), high=1)
    thinking: bool | None = option(None, "reasoning mode of models that have one; none: what the model's user chooses")
    procedural: Procedural | None = option(None, "problems that are generated")
    dataset: Dataset | None = option(None, "problems that exist")
    prompt: str = option("raw", "the statement alone, boxed: with the instruction to box, or text with {problem}")
    hash: str | None = option(None, "pins the content (tepo.problems.hashes.set_hash); what ships has it")
    grader: GraderOptions = option(GraderOptions(), "what differs from the grader's defaults")
    tolerances: dict[str, float] = option({}, "problem id: absolute slack on its numbers", low=Exclusive(0))
    subsets: dict[str, Subset] = option({}, "name: a part of the set that is scored by itself too")
    provenance: str = option("", "where the problems come from")
    licence: str = option("", "of the problems")
    defects: tuple[str, ...] = option((), "what is known to be wrong with them")
    name: str = derived("", "the file's name names the benchmark")
    without: tuple[str, ...] = derived((), "parts of a benchmark go under `subsets`")
    named: bool = derived(False, "the name of a variant says that the numbers are not those of the file")
    departs: tuple[str, ...] = derived((), "belongs in a protocol")

    @property
    def filters(self) -> dict[str, float]:
        """What leaves tokens out of the draws, in the order in which it does; empty where all may be drawn."""
        values = ("min_p", self.min_p, 0.0), ("top_k", self.top_k, 0), ("top_p", self.top_p, 1.0)
        return {key: value for key, value, plain in values if value != plain}

    @property
    def draws_apart(self) -> list[Any]:
        """What identifies the draws beside samples, temperature and limit; empty by default, so that what was measured
        before these settings were there keeps its hash."""
        return [self.filters, self.thinking] if self.filters or self.thinking is not None else []

    @property
    def draws(self) -> str:
        """How responses are drawn, in words."""
        words = "".join(f", {key} {value:g}" for key, value in self.filters.items())
        mode = {None: "", True: ", thinking", False: ", not thinking"}[self.thinking]
        return f"temperature {self.temperature:g}{words}, at most {counted(self.max_new_tokens, 'token')}{mode}"

    @property
    def protocol_note(self) -> str:
        """A sentence about how it is measured; empty where that is what its file says, and all tokens may be drawn."""
        if not (self.named or self.draws_apart):
            return ""
        departs = "".join(f"; {text}" for text in self.departs)
        return f"{self.title} ({self.name}): {counted(self.samples, 'sample')} a problem, {self.draws}{departs}."

    def load_problems(self) -> list[Problem]:
        """The problems, checked against `count` and `hash`. Raises UserError when they are not there or not the pinned
        ones."""
        if source := self.procedural:
            problems = _generated(tuple(source.tasks.items()), self.count, source.seed, source.split)
            if self.hash and set_hash(problems) != self.hash:
                what = "`hash` pins other problems than those that `procedural` and `count` give"
                raise UserError(what, where=f"evals/{self.name.partition(':')[0]}.yaml", fix="leave `hash` out")
        else:
            assert self.dataset
            problems = load_dataset_problems(self.dataset, self.name.partition(":")[0], self.count, self.hash)
        return [problem for problem in problems if problem.id not in self.without]

    def validation(self, count: int) -> "Benchmark":
        """A generated one on so many problems of the validation split, which no training, base or test set holds."""
        assert self.procedural
        source = replace(self.procedural, split="validation", seed=_VALIDATION_SEED)
        return replace(self, procedural=source, count=count, hash=None)

    @cached_property
    def content_hash(self) -> str:
        """Hash of statements and answers (`tepo.problems.hashes.set_hash`), which `load_problems` holds to what the
        file pins. Raises UserError as that does."""
        return self.hash if self.hash and not self.without else set_hash(self.load_problems())

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
        sampling = [self.count, self.samples, self.temperature, self.max_new_tokens, *self.draws_apart]
        return content_hash([source, sampling, template(self.prompt), sorted(self.without)])

    @cached_property
    def grading(self) -> str:
        """Short hash of what is declared here about verdicts; the grader's own fingerprint says the rest."""
        plain = GraderOptions()
        options = asdict(self.grader).items()
        chosen = {key: value for key, value in options if value != getattr(plain, key) and key != "workers"}
        return content_hash([chosen, self.tolerances])


@lru_cache(maxsize=256)
def _generated(tasks: tuple[tuple[str, float], ...], count: int, seed: int, split: Split) -> list[Problem]:
    """Kept, for others to read: a table asks for the same few sets again and again."""
    from tepo.problems.procedural.generator import generate

    return generate(dict(tasks), count, seed, split)


_Setting = Literal["samples", "temperature", "min_p", "top_k", "top_p", "max_new_tokens", "thinking"]


@dataclass(frozen=True)
class Protocol:
    """How a paper or a model's authors measure: settings in place of those of a benchmark's file."""

    title: str = option(REQUIRED, "its name in tables, behind the benchmark's")
    sources: tuple[str, ...] = option(REQUIRED, "where it is published")
    sampling: dict[_Setting, Any] = option(REQUIRED, "settings on every benchmark")
    benchmarks: dict[str, dict[_Setting, Any]] = option({}, "NAME: settings on this one")
    departs: tuple[str, ...] = option((), "what of it tepo does otherwise")


_VALIDATION_SEED = 1  # the same in every run: so runs are compared on the same problems
_FRESH = re.compile(r"problems(0|[1-9][0-9]*)")
_FORMS = ("samplesN", "temperatureX", "min_pX", "top_kN", "top_pX", "tokensN")
_NUMBER = re.compile(r"(samples|temperature|min_p|top_k|top_p|tokens)((?:0|[1-9][0-9]*)(?:\.[0-9]*[1-9])?)")


def load_benchmark(name: str) -> Benchmark:
    """The benchmark `NAME`, or `NAME:VARIANT`, or with several variants behind each other: one of its subsets;
    `problemsSEED`, a generated one with other problems of its split, drawn from that seed; a protocol, which comes
    first; or a number, such as `tokens4096` or `top_p0.95`. Raises UserError for unknown names and broken files."""
    stem, *variants = name.split(":")
    path = paths.find("evals", stem)
    changes: dict[Any, Any] = {}  # settings in place of those of the file
    derivations: dict[str, Any] = {}  # the other fields of a variant
    origins: dict[str, str] = {}  # the place of each change
    titles: dict[str, str] = {}  # the title of each change: a table must not show it as the file's own protocol
    benchmark = parse_benchmark(path)
    protocols = paths.files(paths.PROTOCOLS) if variants else {}
    for variant in variants:
        if number := _NUMBER.fullmatch(variant):
            word, text = number.groups()
            key = "max_new_tokens" if word == "tokens" else word
            changes[key], origins[key] = float(text) if "." in text else int(text), name
            titles[word] = counted(changes[key], word[:-1]) if word in ("tokens", "samples") else f"{word} {text}"
        elif benchmark.procedural and (fresh := _FRESH.fullmatch(variant)):
            derivations |= {"procedural": replace(benchmark.procedural, seed=int(fresh[1])), "hash": None}
        elif variant in benchmark.subsets:
            derivations["without"] = benchmark.subsets[variant].without
        elif variant in protocols:
            if variant != variants[0]:
                what = "a benchmark takes one protocol, which comes first"
                raise UserError(what, where=name, fix=f"{stem}:{variant}:…")
            protocol = parse_protocol(protocols[variant])
            changes = {**protocol.sampling, **protocol.benchmarks.get(path.stem, {})}
            origins = dict.fromkeys(changes, str(protocols[variant]))
            titles["protocol"], derivations["departs"] = protocol.title, protocol.departs
        else:
            forms = [*_FORMS, *(["problemsSEED"] if benchmark.procedural else [])]
            raise unknown_name(f"variant of {stem}", variant, [*benchmark.subsets, *protocols, *forms], where=str(path))
    if changes:
        benchmark = parse_benchmark(path, changes, origins)
    title = ", ".join([benchmark.title, *titles.values()])
    named = bool(titles.keys() - {"tokens"})
    return replace(benchmark, name=":".join([path.stem, *variants]), title=title, named=named, **derivations)


def check_measurable(data: DataConfig) -> None:
    """Raise UserError for data that name no benchmarks, or an unknown one: there would be no table."""
    if not data.benchmarks:
        fix = "data.benchmarks=[NAME,…] (a study: after --set); `tepo list` names them, evals/ of TEPO_PATH holds yours"
        raise UserError(f"nothing to measure on: data={data.name} names no benchmarks", fix=fix)
    for name in data.benchmarks:
        load_benchmark(name)


def parse_protocol(path: Path) -> Protocol:
    """Read and check one file of `evals/protocols/`; values are checked where a benchmark takes them."""
    document = load(path)
    return read(Protocol, document.data, document.at)


def parse_benchmark(path: Path, changes: Mapping[str, Any] = {}, origins: Mapping[str, str] = {}) -> Benchmark:
    """Read and check one file of `evals/`. changes: values in place of those of the file, with the origins that
    messages name."""
    document = load(path)

    def origin(keys: Keys) -> str:
        return origins.get(str(keys[0]), "") if keys and keys[0] in changes else document.at.origin(keys)

    at = Location(origin)
    benchmark = read(Benchmark, document.data | dict(changes), at)
    prompt = read_prompt(benchmark.prompt, path.parent, at.at("prompt"))
    benchmark = replace(benchmark, name=path.stem, prompt=prompt)
    if (benchmark.procedural is None) == (benchmark.dataset is None):
        raise at.error("needs exactly one of `procedural` and `dataset`")
    if dataset := benchmark.dataset:
        if dataset.path.endswith(".jsonl"):  # a file of problems, below the folder of this one
            if dataset.fields != Fields():
                what = "`fields` is for sets of the hub, and this one is a file of problems"
                fix = 'name its columns "id", "problem" and "answer"'
                raise at.at("dataset").at("fields").error(what, fix=fix)
            below = str(path.parent / Path(dataset.path).expanduser())
            benchmark = replace(benchmark, dataset=replace(dataset, path=below))
        if not benchmark.hash and (paths.shipped("evals") / path.name).is_file():
            fix = "give its hash, or give the file a name of its own"
            raise at.error("a benchmark that ships with tepo is pinned: `hash` is missing", fix=fix)
    if benchmark.temperature == 0 and benchmark.samples > 1:
        what = "greedy (temperature 0) with more than one sample a problem repeats the same response"
        raise at.at("samples").error(what, fix="samples: 1 (NAME:samples1)")
    if benchmark.temperature == 0 and (idle := benchmark.filters):
        what = f"greedy (temperature 0) takes the likeliest token, whatever {', '.join(idle)} leaves out"
        raise at.at(min(idle)).error(what, fix="leave it out, or a temperature (NAME:temperature0.6)")
    return benchmark
