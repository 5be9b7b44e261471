"""Samplers that measure: the one that a run trains with, one that loads a model by its path, or one loaded engine for
several models of one architecture: loading vLLM takes a minute or two, handing it other weights a second."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tepo.common.errors import UserError
from tepo.config.run_config import chosen
from tepo.jobs.weights import Weights, tokenizer_of
from tepo.sampling.backends import SamplerOptions, longest_sequence
from tepo.sampling.served import ServedModel, ServedSampler
from tepo.store.run_folder import RunFolder
from tepo.training.run import Run

if TYPE_CHECKING:
    from tepo.sampling.sampler import Sampler

Generator = AbstractContextManager[tuple["Sampler", Any]]
"""A sampler with the policy's tokenizer (None for one that is asked with text), closed at the end."""

# Settings of a model that say nothing of its architecture.
_ORIGIN = ("_name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype", "use_cache")


def trainers_sampler(run: Run, weights: Weights, folder: RunFolder) -> Generator:
    """The sampler that a run trains with, of the given weights, with the GPU for itself. Where ranks train with engines
    of their own, there are as many on the GPUs of this machine that the ranks had. folder: of the results."""
    from tepo.training.distributed.process_group import local_world_size
    from tepo.training.resources.layout import with_all
    from tepo.training.setup import gpus_here, laid_out, pick_device, shape_at

    config, backend, gpus = run.config, run.sampler, local_world_size()
    sampler, length = config.sampler, longest_sequence(config)
    device = pick_device(config.engine.device)
    if gpus > 1 and not (backend.shares_weights or backend.remote):
        size = chosen(laid_out(run)[0].config.sampler.tensor_parallel)
        cut = 1 if device.type == "cpu" else size  # there a server of vLLM's takes a NUMA node for each part of a model
        options = SamplerOptions(sampler.kind, config.model.dtype, cut, gpus // size, max_length=length)
        return model_sampler(weights, options, folder)
    # One sampler has this GPU for itself: its share and its rows are chosen where they are open.
    here = gpus_here(device)
    if here.bytes or sampler.max_rows is None:
        run = with_all(replace(run, sizes=shape_at(config, weights.path)), here)
    if backend.shares_weights or backend.remote:
        return _of_policy(run, weights, folder.exchange)
    sampler = run.config.sampler
    rows = chosen(sampler.max_rows)
    options = SamplerOptions(sampler.kind, config.model.dtype, max_length=length, max_rows=rows)
    if sampler.memory_fraction is not None:  # on a CPU it has a size of its own
        options = replace(options, memory=sampler.memory_fraction)
    return model_sampler(weights, options, folder)


@contextmanager
def _of_policy(run: Run, weights: Weights, exchange: Path) -> Iterator[tuple["Sampler", Any]]:
    """One that is given a policy: in this process, or what servers there are. For these the policy stays on the CPU."""
    from tepo.policy.model.load_policy import load_policy
    from tepo.policy.model.lora import full_state
    from tepo.policy.model.model_location import resolve
    from tepo.training.setup import make_sampler, pick_device

    device, remote = pick_device(run.config.engine.device), run.sampler.remote
    policy = load_policy(
        weights.path,
        dtype=run.config.model.dtype,
        device="cpu" if remote else str(device),
        revision=weights.revision,
        trust_remote_code=weights.trust_remote_code,
    )
    with closing(make_sampler(run, policy, resolve(weights.path), exchange)) as sampler:
        if remote:
            sampler.sync(full_state(policy.model))
        yield sampler, policy.tokenizer


@contextmanager
def model_sampler(weights: Weights, options: SamplerOptions, run: RunFolder) -> Iterator[tuple["Sampler", Any]]:
    """A sampler that loads the weights itself, on as many GPUs as the options say."""
    options = replace(options, revision=weights.revision, trust_remote_code=weights.trust_remote_code)
    with options.backend.open_model(weights.path, options, run.server_logs) as sampler:
        yield sampler, tokenizer_of(weights)


@contextmanager
def served_sampler(model: ServedModel) -> Iterator[tuple[Any, None]]:
    """A `ServedSampler`, which evaluation takes for a Sampler."""
    with closing(ServedSampler(model)) as sampler:
        yield sampler, None


class SharedEngine(AbstractContextManager["SharedEngine"]):
    """Opens a sampler for the first model that asks, gives it the weights of the others, and closes it at the end.

    longest: tokens of the longest prompt plus response that any of the models is asked for; without it those of the
    first model count. failed: the sampler did not open; it would not for the others.
    """

    def __init__(self, longest: Callable[[], int] | None = None) -> None:
        self.longest = longest
        self.failed = False
        self._stack = ExitStack()
        self._sampler: Sampler | None = None
        self._first: Weights | None = None
        self._held: Weights | None = None

    @contextmanager
    def holding(self, weights: Weights, dtype: str, opened: Callable[[], Generator]) -> Iterator[tuple["Sampler", Any]]:
        """The sampler with these weights, and their tokenizer. dtype: float32 or bfloat16. opened: opens a sampler of
        these weights, with room for all models. Raises UserError for a model of another architecture than the first,
        and for one that does not load."""
        from tepo.policy.model.load_policy import load_policy
        from tepo.policy.model.lora import full_state

        if self._sampler is None:
            self.failed = True
            self._sampler, tokenizer = self._stack.enter_context(opened())
            self.failed = False
            self._first = self._held = weights
        else:
            assert self._first is not None
            check_alike([self._first, weights])
            tokenizer = tokenizer_of(weights)
            if self._held != weights:
                self._held = None  # until it has all of them
                code = weights.trust_remote_code
                policy = load_policy(weights.path, dtype=dtype, revision=weights.revision, trust_remote_code=code)
                self._sampler.sync(full_state(policy.model))
                self._held = weights
        yield self._sampler, tokenizer

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def check_alike(models: Sequence[Weights]) -> None:
    """Raises UserError for models of several architectures, or whose responses end with different tokens."""
    first, *others = models
    for other in others:
        one, two = _architecture(first), _architecture(other)
        if different := sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key)):
            what = f"the model differs from {first.path} in {', '.join(different)}: they cannot share a loaded engine"
            raise UserError(what, where=other.path, fix="evaluate it with a command of its own")


def _architecture(weights: Weights) -> dict[str, Any]:
    """Settings that an engine is built from, apart from the weights."""
    from tepo.sampling.stop_tokens import stop_tokens_of

    tokenizer_of(weights)  # says so where there is no model
    stop = stop_tokens_of(weights.path, weights.revision, weights.trust_remote_code)
    config = weights.sizes().to_dict()
    return {key: value for key, value in config.items() if key not in _ORIGIN} | {"end of a response": stop}
