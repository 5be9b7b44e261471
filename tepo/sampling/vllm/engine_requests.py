"""An engine of vLLM in this process: the calls that we make, and its requests in flight.

The calls are looked up in its source: importing it takes seconds, and Model Runner V2, which GPUs run, cannot be
imported on a machine without Triton."""

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tepo.sampling.sampler import GivenUp

_RELOAD: dict[str, tuple[str, ...]] = {"GPUModelRunner.reload_weights": ("weights_iterator",)}
_CALLS: dict[str, dict[str, tuple[str, ...]]] = {
    "v1/worker/gpu_model_runner.py": _RELOAD,  # Model Runner V1: CPUs, and GPUs where V2 lacks something
    "v1/worker/gpu/model_runner.py": _RELOAD,  # V2
    "entrypoints/llm.py": {
        "LLM.apply_model": ("func",),
        "LLM.collective_rpc": ("method", "kwargs"),
        "LLM.generate": ("prompts", "sampling_params", "use_tqdm"),
        "LLM.reset_prefix_cache": (),
        "LLM.sleep": ("level",),
        "LLM.wake_up": ("tags",),
    },
    "distributed/parallel_state.py": {"GroupCoordinator.first_rank": ()},
    "v1/engine/llm_engine.py": {
        "LLMEngine.abort_request": ("request_ids",),
        "LLMEngine.add_request": ("request_id", "prompt", "params"),
        "LLMEngine.step": (),
    },
}


def missing_calls(folder: Path) -> list[str]:
    """Name the calls that the vLLM in a folder does not have for either of its model runners."""
    missing = []
    for file, calls in _CALLS.items():
        there = dict(_methods(folder / file))
        for name, parameters in calls.items():
            if name not in there or not there[name].issuperset(parameters):
                missing.append(f"{name}({', '.join(parameters)}) in {file}")
    return missing


def _methods(file: Path) -> Iterator[tuple[str, set[str]]]:
    """`Class.method` and the names of its parameters; none of a file that is not there."""
    if not file.is_file():
        return
    for owner in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(owner, ast.ClassDef):
            for method in owner.body:
                if isinstance(method, ast.FunctionDef):
                    arguments = method.args
                    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                    yield f"{owner.name}.{method.name}", {name.arg for name in names}


class SeenRequests:
    """The requests of a queue, finished ones too."""

    def __init__(self, engine: Any) -> None:
        core = getattr(engine.engine_core, "engine_core", None)
        self._under_way: dict[str, Any] | None = getattr(getattr(core, "scheduler", None), "requests", None)
        self._seen: dict[str, Any] = {}
        self._dropped = 0

    def look(self) -> None:
        """Remember those that were just added."""
        self._seen |= self._under_way or {}

    @contextlib.contextmanager
    def dropping(self) -> Iterator[None]:
        """Requests are given up in the block, and those after them are not."""
        before = self._tokens
        yield
        self._dropped += before - self._tokens

    def given_up(self, waiting: int) -> GivenUp | None:
        """Tokens and preemptions seen so far, which are forgotten.

        waiting: tokens of finished responses that are given up too."""
        seen, self._seen = self._seen, {}
        tokens, self._dropped = waiting + self._tokens + self._dropped, 0
        if self._under_way is None or not all(hasattr(request, "num_output_tokens") for request in seen.values()):
            return None
        return GivenUp(tokens, sum(getattr(request, "num_preemptions", 0) for request in seen.values()))

    @property
    def _tokens(self) -> int:
        """Tokens of the requests in flight."""
        return sum(getattr(request, "num_output_tokens", 0) for request in (self._under_way or {}).values())
