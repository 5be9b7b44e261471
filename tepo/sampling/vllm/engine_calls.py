"""The calls into vLLM that we make, looked up in its source. Importing it takes seconds, and Model Runner V2, which
GPUs run, cannot be imported on a machine without Triton."""

import ast
from collections.abc import Iterator
from pathlib import Path

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
    """Those that the vLLM in a folder does not have, in words, for either of its model runners."""
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
