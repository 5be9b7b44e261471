"""Brings to this machine, before they start, all that the runs of a plan read from a network: on a cluster the login
node alone reaches the hub, and its caches lie on the file system that all nodes see."""

from collections.abc import Callable, Iterable
from functools import partial

from tepo.common.errors import UserError
from tepo.common.text import counted
from tepo.config.own_files import is_own
from tepo.config.run_config import DataConfig, ModelConfig
from tepo.policy.model.fetch import NAMES, fetch, fetch_from_hub
from tepo.policy.model.model_location import CACHE, hub_silence, on_hub, resolve
from tepo.problems.benchmarks import load_benchmark
from tepo.problems.data_reader import read_data
from tepo.problems.sources import Dataset, is_remote, keep
from tepo.problems.training_sets import dataset_benchmarks, sources_of
from tepo.studies.plan import Unit


def fetch_inputs(units: Iterable[Unit], tell: Callable[[str], None]) -> None:
    """Bring the models, training sets and benchmarks of all units into the caches of this machine. What is there stays,
    and a download that was cut short goes on. tell: is given a line for each.

    Raises UserError that names what could not be fetched, after all the rest was; before anything where the hub is
    needed and does not answer."""
    configs = [unit.config for unit in units]
    models = {(model.path, model.revision): model for config in configs for model in config.model.loaded}.values()
    sets, own_data = _problems([config.data for config in configs])
    remote = any(is_remote(source, name) for name, (source, _, _) in sets.items())
    if (remote or any(on_hub(model.path) for model in models)) and (silence := hub_silence()):
        fix = "run this where there is a network, without HF_HUB_OFFLINE; HF_ENDPOINT names a mirror of the hub"
        raise UserError(f"nothing is fetched: {silence}", fix=fix)
    work = {"@".join(filter(None, (model.path, model.revision))): partial(_model, model) for model in models}
    work |= {name: partial(keep, source, name, count, pin) for name, (source, count, pin) in sets.items()}
    work |= {data.problems or "": partial(_own_problems, data) for data in own_data}
    failed: dict[str, UserError] = {}
    for name, bring in work.items():
        try:
            tell(f"{name}: {bring()}")
        except UserError as error:
            failed[name] = error
            tell(f"{name}: not fetched")
    if failed:
        first = next(iter(failed.values()))
        what = f"not fetched: {', '.join(failed)}; {first.what}"
        raise UserError(what, where=first.where, fix=first.fix)


def _model(model: ModelConfig) -> str:
    """Raises UserError for a model that is not there, or not whole."""
    name = model.path.removeprefix(CACHE)
    if on_hub(model.path):
        return fetch_from_hub(model.path, model.revision, model.trust_remote_code)
    if model.path.startswith(CACHE) and name in NAMES:
        return str(fetch(name))
    return f"there already, {resolve(model.path)}"


_Sets = dict[str, tuple[Dataset, int, str | None]]


def _problems(data: list[DataConfig]) -> tuple[_Sets, list[DataConfig]]:
    """The declared sets with the number of their problems and the hash of them; and who reads problems of the
    caller's."""
    trained = {config.problems: config for config in data if config.kind == "problems" and config.problems}
    own_data = [config for name, config in trained.items() if is_own("data", name)]
    compared = dataset_benchmarks() if any(config.exclude_contaminated for config in own_data) else []
    sets: _Sets = {}
    for name in trained:
        for part, declared in [] if is_own("data", name) else sources_of(name):
            assert declared.dataset
            sets[part] = declared.dataset, declared.count, declared.hash
    for name in dict.fromkeys([*(name for config in data for name in config.benchmarks), *compared]):
        benchmark = load_benchmark(name)
        if benchmark.dataset:
            sets[name.partition(":")[0]] = benchmark.dataset, benchmark.count, benchmark.hash
    return sets, own_data


def _own_problems(data: DataConfig) -> str:
    """A set of the hub stays in the cache of `datasets`."""
    return counted(len(read_data(data.problems or "", data.fields, data.columns).problems), "problem")
