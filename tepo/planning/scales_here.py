"""Which scales a machine can run, from the memory of its GPUs."""

from collections.abc import Iterator, Sequence

from tepo.config.compose import compose
from tepo.planning.fit import fit
from tepo.planning.gpus import Machine
from tepo.studies.study import SCALES, load_study
from tepo.training.engine.backends import engine_backend

_TABLES = ("table1", "table2")  # with all models of a scale


def scales_here(gpus: Sequence[float], host: float) -> Iterator[tuple[str, str]]:
    """Each shipped scale, and in words what of it fits. gpus: bytes of each GPU; host: bytes of main memory."""
    for scale in SCALES:
        models = dict.fromkeys(model for table in _TABLES for model in load_study(table).scale(scale).models)
        yield scale, "; ".join(_fits(scale, model, gpus, host) for model in models)


def _fits(scale: str, model: str, gpus: Sequence[float], host: float) -> str:
    config = compose([f"scale={scale}", f"model={model}"])
    if config.model.dtype == "float32":
        return f"{model} runs on the CPU"
    if not gpus:
        return f"{model} needs a GPU"
    ranks = len(gpus) if engine_backend(config.engine.kind).several_ranks else 1
    # only memory counts here: operations, bandwidth and price say nothing
    fitted = fit(config, Machine("GPU", 1, ranks, min(gpus), 1.0, 1.0, 0.0, host))
    if not fitted.problem:
        return f"{model} fits"
    if fitted.changes is None:
        return f"{model} does not fit"
    return f"{model} fits with {' '.join(fitted.changes)}"
