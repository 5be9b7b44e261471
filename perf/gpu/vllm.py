"""Parts vllm, two_gpus and vllm_head, on random weights of Qwen2.5-0.5B's shape: sleep, wake and reload, the gap of
sampler and trainer, and memory: in each section of a step, of the updates to the plan, and what is left for the
measurer."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from perf.gpu.models import make_policy, planned
from perf.gpu.record import Figure, NotRun, named
from perf.gpu.runs import finish, need, rows, start, study
from tepo.common.provenance import sessions
from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import load_policy
from tepo.policy.packing.packing import pack
from tepo.sampling.gap import Gap, default_bound
from tepo.training.resources.gpu_cards import GIB
from tepo.training.resources.memory import CONTEXT, TAKEN

_SMALL = ["train.prompts_per_step=8", "train.mini_batch_prompts=4", "train.max_prompt_tokens=400"]
_SMALL += ["train.max_new_tokens=16", "train.max_rounds=2", "engine.micro_batch_tokens=2048"]
_SMALL += ["sampler.memory_fraction=0.2"]
_STEPS, _RANKS, _OBJECTIVE = 2, 2, "tepo"
_BOTH = "sampler.tensor_parallel=2"
_LAYOUTS = {  # gradients are summed once an update at stage 1, then cut too, after every micro-batch
    "an engine each, ZeRO 1": ("sampler.tensor_parallel=1", "engine.zero_stage=1"),
    "an engine over both, ZeRO 2": (_BOTH, "engine.zero_stage=2"),
    "an engine over both, ZeRO 3": (_BOTH, "engine.zero_stage=3"),
    "an engine over both, ZeRO 3, optimiser in main memory": (_BOTH, "engine.zero_stage=3", "engine.offload=true"),
}


def words(folder: Path, device: str, small: bool) -> list[str]:
    """Command line of the run, whose policy and problems are made in a folder."""
    made = make_policy(folder, "small" if small else "qwen2.5-0.5b", device)
    size = _SMALL if small else ["train.prompts_per_step=32"]
    given = [*(f"{name}={value}" for name, value in made.items()), "model.dtype=bfloat16", "sampler=vllm"]
    return ["scale=single_gpu", *given, f"train.steps={_STEPS}", *size]


def vllm(device: str, small: bool) -> Iterator[Figure]:
    """A study of one run, of two steps and a benchmark, its memory watched from this process."""
    need("vllm")
    with tempfile.TemporaryDirectory() as name:
        store, given = Path(name) / "runs", words(Path(name), device, small)
        with watched(device, lambda: len(rows(store)) >= _STEPS) as (training, measuring):
            study(Path(name), given, [_OBJECTIVE], store, int(device == "cuda"))
        drew = [session.get("sampler", {}) for run in store.iterdir() for session in sessions(run)]
        engine = "; ".join(", ".join(parts.values()) for parts in drew)
        yield Figure("steps", "steps", len(rows(store)), _STEPS, ">=", engine)
        yield Figure("benchmarks measured", "", len(list(store.glob("*/eval/*/result.json"))), 1, ">=")
        yield from sections(store, planned([*given, f"objective={_OBJECTIVE}"]).updating)
    yield Figure("taken in training, at most", "GiB", max(training))
    # what the trainer still holds when the measurer begins: on a GPU, where nothing else comes and goes, a context
    limit, must = ((training[0] + CONTEXT / GIB), "<=") if device == "cuda" else (None, "")
    yield Figure("taken when measuring begins", "GiB", min(measuring), limit, must, "least after the last step")
    yield Figure("taken in the measurer, at most", "GiB", max(measuring))


def two_gpus(device: str, small: bool) -> Iterator[Figure]:
    """The same on two ranks, over NCCL on GPUs, in every layout of `_LAYOUTS`; the benchmark is measured below
    ZeRO 3."""
    if device == "cuda" and torch.cuda.device_count() < _RANKS:
        raise NotRun(f"needs {_RANKS} GPUs, here is 1")
    need("vllm", "deepspeed")
    with tempfile.TemporaryDirectory() as name:
        given = [*words(Path(name), device, small), f"objective={_OBJECTIVE}", "engine=deepspeed", "--quiet"]
        os.environ["TEPO_PATH"] = name
        for number, (layout, settings) in enumerate(_LAYOUTS.items()):
            store, measured = Path(name) / f"runs{number}", "engine.zero_stage=3" not in settings
            evaluate = ["--evaluate"] if measured else []
            finish(start("train", *given, *settings, *evaluate, f"store={store}", ranks=_RANKS))
            yield Figure(f"{layout}: steps", "steps", len(rows(store)), _STEPS, ">=")
            if measured:
                results = len(list(store.glob("*/eval/*/result.json")))
                yield Figure(f"{layout}: benchmarks measured", "", results, 1, ">=")
            yield from named(layout, sections(store, None))  # the plan is for one rank


@contextmanager
def watched(device: str, trained) -> Iterator[tuple[list[float], list[float]]]:
    """GiB that all processes hold, of the GPU or of main memory, before `trained()` and from then on."""

    def taken() -> float:
        if device == "cuda":
            free, total = torch.cuda.mem_get_info()
            return (total - free) / 2**30
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
        return (total - free) / 2**20

    if device == "cuda":
        torch.cuda.empty_cache()
    seen: tuple[list[float], list[float]] = ([taken()], [])
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen[trained()].append(taken())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def sections(store: Path, plan: float | None) -> Iterator[Figure]:
    """The gap before the first update and after a sync, seconds of a step, and on a GPU what is taken at the end of
    each of its sections; the plan for the updates."""
    found = rows(store)
    for step, row in enumerate(found, start=1):
        gap = row["training/rollout_logprobs_diff_mean"]
        yield Figure(f"gap of sampler and trainer, step {step}", "nats", gap, default_bound("bfloat16"), "<=")
    last = found[-1]
    yield Figure("a step", "s", last["timing_s/step"], note=f"{last['perf/throughput_gen']:.0f} sampled tokens/s")
    for name in sorted(name for name in last if name.startswith(TAKEN)):
        limit = plan / GIB if plan and name == f"{TAKEN}update_actor" else None
        most = max(row.get(name, 0.0) for row in found)
        note = "to the plan" if limit else ""
        yield Figure(f"taken in {name.removeprefix(TAKEN)}", "GiB", most, limit, "<=" if limit else "", note)


def vllm_head(device: str, small: bool) -> Iterator[Figure]:
    """The gap where vLLM's output matrix multiplies in bfloat16, as is its default, and in float32, and how many times
    the one is the other; both with the engine of a run, without graphs."""
    need("vllm")
    bound, found = default_bound("bfloat16"), {}
    with tempfile.TemporaryDirectory() as name:
        path = make_policy(Path(name), "small" if small else "qwen2.5-0.5b", device)["model"]
        for head, overrides in {"bfloat16": {}, "float32": {"head_dtype": "float32"}}.items():
            found[head] = gap = head_gap(path, overrides, device, 16 if small else 256)
            note = f"largest {gap.max:.3g}, {gap.share:.2%} of tokens ten bounds apart"
            yield Figure(f"gap with the output matrix in {head}", "nats", gap.mean, bound, "<=", note)
    ratio = found["float32"].mean / found["bfloat16"].mean
    yield Figure("gap in float32 to that in bfloat16", "ratio", ratio, 1.0, "" if small else "<=")


def head_gap(path: str, overrides: dict[str, str], device: str, tokens: int) -> Gap:
    """The gap to the trainer of 16 groups of four from an engine that is closed again."""
    from tepo.sampling.vllm.vllm_sampler import import_vllm

    engines, cpu = import_vllm(), device == "cpu"
    room = {"kv_cache_memory_bytes": 128 << 20} if cpu else {"gpu_memory_utilization": 0.3}
    plain = {"enforce_eager": True, "enable_chunked_prefill": False if cpu else None, "max_model_len": 512}
    plain |= {"max_num_seqs": 64, "seed": 0, "logprobs_mode": "processed_logprobs", "generation_config": "vllm"}
    engine = engines.LLM(path, dtype="bfloat16", hf_overrides=overrides, skip_tokenizer_init=True, **plain, **room)
    prompts = torch.randint(2, 258, (16, 128), generator=torch.Generator().manual_seed(0)).tolist()
    kind = {"n": 4, "temperature": 1.0, "max_tokens": tokens, "logprobs": 0, "detokenize": False}
    asked = [engines.SamplingParams(seed=100 * i, **kind) for i in range(len(prompts))]
    drawn = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], asked, use_tqdm=False)
    engine.llm_engine.engine_core.shutdown()
    model = load_policy(path, dtype="bfloat16", device=torch.device(device)).model
    trainer, sampler = [], []
    for prompt, out in zip(prompts, drawn, strict=True):
        responses = [torch.tensor(list(one.token_ids)).numpy() for one in out.outputs]
        with torch.no_grad():
            packed = pack([(prompt, responses)]).to(device)
            trainer.append(token_statistics(model, packed, StatisticsOptions(need_entropy=False)).logprobs.cpu())
        for one in out.outputs:
            pairs = zip(one.token_ids, one.logprobs, strict=True)
            sampler.append(torch.tensor([known[token].logprob for token, known in pairs]))
    return Gap.measure(torch.cat(sampler), torch.cat(trainer), default_bound("bfloat16"))
