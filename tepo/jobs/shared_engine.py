"""One loaded engine for several models of one architecture: loading vLLM takes a minute or two, handing it other
weights a second."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tepo.common.errors import UserError
from tepo.jobs.weights import Weights, tokenizer_of

if TYPE_CHECKING:
    from tepo.sampling.sampler import Sampler

Generator = AbstractContextManager[tuple["Sampler", Any]]
"""A sampler with the policy's tokenizer, closed at the end."""

_ORIGIN = ("_name_or_path", "_commit_hash", "transformers_version", "dtype", "torch_dtype", "use_cache")


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
    from transformers import AutoConfig

    from tepo.policy.model.model_location import load_options, not_loaded, resolve
    from tepo.sampling.stop_tokens import stop_tokens_of

    options = (weights.revision, weights.trust_remote_code)
    tokenizer_of(weights)  # says so where there is no model
    try:
        config = AutoConfig.from_pretrained(resolve(weights.path), **load_options(weights.path, *options)).to_dict()
        stop = stop_tokens_of(weights.path, *options)
    except (OSError, ValueError) as error:
        raise not_loaded("the model does not load", error, weights.path) from error
    return {key: value for key, value in config.items() if key not in _ORIGIN} | {"end of a response": stop}
