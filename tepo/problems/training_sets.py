"""Training problems: sets declared in `sets/NAME.yaml` (from TEPO_DATA or the hub, pinned like benchmarks, or made of
other declared sets) or a user's own NAME.jsonl."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from tepo.common import paths
from tepo.common.errors import UserError, unknown_name
from tepo.common.files import content_hash
from tepo.common.schema import REQUIRED, option, read
from tepo.common.schema.document import load
from tepo.config.own_files import GYM, HUB_DATA, is_data_file, is_own
from tepo.config.run_config import DataConfig
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.contamination import is_compared, overlaps
from tepo.problems.data_reader import SYSTEM, read_data, shared_system
from tepo.problems.hashes import FOLDER as PINNED
from tepo.problems.hashes import rows_hash, set_hash
from tepo.problems.problem import Problem
from tepo.problems.sources import Dataset, check_source, load_dataset_problems, mismatch

SETS = Path(__file__).parent / "sets"


@dataclass(frozen=True)
class TrainingSet:
    """A declared training set. Exactly one of `dataset` and `of` says where its problems come from."""

    count: int = option(REQUIRED, "number of problems", low=1)
    hash: str = option(REQUIRED, "pins the content (tepo.problems.hashes.set_hash)")
    provenance: str = option(REQUIRED, "where the rows come from, in words")
    licence: str = option(REQUIRED, "of the problems")
    dataset: Dataset | None = option(None, "where the problems come from")
    of: tuple[str, ...] = option((), "declared sets whose problems it has, in this order")
    drawn: bool = option(False, "`count` of their problems and not all; `draw` says which")
    defects: tuple[str, ...] = option((), "what is known to be wrong with them")


def training_names() -> list[str]:
    """Names of the declared sets."""
    return sorted(path.stem for path in SETS.glob("*.yaml"))


def load_training_set(name: str) -> TrainingSet:
    """The declaration of a set. Raises UserError with the nearest name."""
    if name not in training_names():
        raise unknown_name("training set", name, training_names())
    document = load(SETS / f"{name}.yaml")
    declared = read(TrainingSet, document.data, document.at)
    if bool(declared.dataset) == bool(declared.of):
        raise document.at.error("needs exactly one of `dataset` and `of`")
    return declared


def load_training_problems(
    name: str,
    *,
    exclude_contaminated: bool = False,
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
) -> list[Problem]:
    """Problems of a declared set, or of a user's own data (`data_reader.read_data`, which has fields and columns).

    exclude_contaminated: without those that a benchmark of the papers holds almost verbatim (Jaccard index above 0.8);
    a declared set has the list, for a file it is computed, which needs the benchmarks. Raises UserError for what cannot
    be found or is not the pinned content."""
    if is_own("data", name):
        problems = list(read_data(name, fields, columns).problems)
        pairs = overlaps(benchmark_problems(), problems) if exclude_contaminated else []
        contaminated = {overlap.training for overlap in pairs}
    else:
        problems = _declared_problems(name)
        contaminated = listed_contamination(name) if exclude_contaminated else set()
    return [problem for problem in problems if problem.id not in contaminated]


def system_of(data: DataConfig) -> str:
    """The system prompt that benchmarks are asked with, too: the one of all training problems (`data.fields.system`);
    empty where they have none or several. Raises UserError as `read_data`."""
    if SYSTEM not in data.fields:
        return ""
    return shared_system(read_data(data.problems or "", data.fields, data.columns).problems)


def check_training_set(name: str) -> None:
    """Raises UserError where the problems of a declared set, or of a file, cannot be read for want of a package."""
    if is_own("data", name):
        return  # a run's id already needs what it holds
    for part, declared in sources_of(name):
        assert declared.dataset
        check_source(declared.dataset, part)


def sources_of(name: str) -> Iterator[tuple[str, TrainingSet]]:
    """The declared sets that the problems of one come from, by name."""
    declared = load_training_set(name)
    if declared.dataset:
        yield name, declared
    for part in declared.of:
        yield from sources_of(part)


def hub_sets(data: DataConfig) -> list[str]:
    """Data sets of the hub that the training problems come from."""
    name = data.problems or ""
    if data.kind != "problems" or is_data_file(name) or name.startswith(GYM):
        return []
    if match := HUB_DATA.fullmatch(name):
        return [match["path"]]
    paths = [declared.dataset.path for _, declared in sources_of(name) if declared.dataset]
    return list(dict.fromkeys(path for path in paths if HUB_DATA.fullmatch(path)))


def _declared_problems(name: str) -> list[Problem]:
    """The problems of a declared set; those of a set that is made of others keep their ids."""
    declared = load_training_set(name)
    if declared.dataset:
        return load_dataset_problems(declared.dataset, name, declared.count, declared.hash)
    problems = [problem for part in declared.of for problem in _declared_problems(part)]
    if declared.drawn:
        problems = draw(problems, declared.count, listed_contamination(name))
    if set_hash(problems) != declared.hash:
        raise mismatch(problems, name, declared.count, ", ".join(declared.of))
    return problems


def draw(problems: Sequence[Problem], count: int, contaminated: Set[str]) -> list[Problem]:
    """`count` problems in their order: those whose statements have the smallest hashes, among statements that occur
    once, are in a language that is compared with the benchmarks, and are in none of them. White space counts for
    nothing: copies of a set differ in it."""
    digests = {problem.id: content_hash("".join(problem.prompt.split())) for problem in problems}
    times = Counter(digests.values())
    candidates = [problem for problem in problems if times[digests[problem.id]] == 1 and problem.id not in contaminated]
    candidates = [problem for problem in candidates if is_compared(problem.prompt)]
    chosen = {problem.id for problem in sorted(candidates, key=lambda problem: digests[problem.id])[:count]}
    return [problem for problem in candidates if problem.id in chosen]


def split_off(problems: Sequence[Problem], count: int, where: str) -> tuple[list[Problem], list[Problem]]:
    """The problems to train on, and `count` that are held out of training: those whose statements have the smallest
    hashes, so that the choice depends on no order; equal statements stay together. Raises UserError when too few are
    left to train on."""
    if not count:
        return list(problems), []
    hashes = [content_hash(problem.prompt, 16) for problem in problems]
    chosen = set(sorted(set(hashes))[:count])
    out = [problem for problem, digest in zip(problems, hashes, strict=True) if digest in chosen]
    rest = [problem for problem, digest in zip(problems, hashes, strict=True) if digest not in chosen]
    if not rest:
        what = f"data.held_out={count} leaves none of {len(problems)} problems to train on"
        distinct = len(set(hashes))
        fix = f"data.held_out={max(1, distinct // 10)}" if distinct > 1 else "problems with other statements"
        raise UserError(what, where=where, fix=fix)
    return rest, out


def training_fingerprint(
    name: str,
    *,
    exclude_contaminated: bool = False,
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
) -> str:
    """A hash of what `load_training_problems` gives: of the rows of a file, wherever it lies; of a declared set the
    pinned one, so that nothing is downloaded. Raises UserError for a set or a file that is not there, and for
    a broken file."""
    if not is_own("data", name):
        return content_hash([load_training_set(name).hash, exclude_contaminated], 64)
    rows = rows_hash(read_data(name, fields, columns).problems)
    left_out = (
        [load_benchmark(benchmark).fingerprint for benchmark in dataset_benchmarks()] if exclude_contaminated else None
    )
    return content_hash([rows, left_out], 64)


def listed_contamination(name: str) -> set[str]:
    """Ids of the training problems that are left out, as `tepo data contamination` found them."""
    parts = load_training_set(name).of
    if parts:
        return set().union(*map(listed_contamination, parts))
    return set((PINNED / f"{name}.contaminated.txt").read_text(encoding="utf-8").split())


def dataset_benchmarks() -> list[str]:
    """Benchmarks whose problems are published, not generated: those a training set can hold."""
    return [name for name in paths.names("evals") if load_benchmark(name).dataset]


def benchmark_problems() -> list[Problem]:
    """Problems of all published benchmarks."""
    return [problem for name in dataset_benchmarks() for problem in load_benchmark(name).load_problems()]
