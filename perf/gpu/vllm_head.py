"""The gap of vLLM and the trainer where vLLM's output matrix multiplies in bfloat16, as is its default, and in float32:
the same random weights of Qwen2.5-0.5B's shape, both with the engine of a run, without graphs."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from perf.gpu.random_policy import make
from perf.gpu.runs import need
from tepo.policy.logprobs.softmax_at_temperature import StatisticsOptions
from tepo.policy.logprobs.token_statistics import token_statistics
from tepo.policy.model.load_policy import load_policy
from tepo.policy.packing.packing import pack
from tepo.sampling.gap import Gap, default_bound
from tepo.training.probes.probe_record import Figure

_HEADS = {"bfloat16": {}, "float32": {"head_dtype": "float32"}}


def measure(device: str, small: bool) -> Iterator[Figure]:
    """Both gaps, and how many times the one is the other."""
    need("vllm")
    from tepo.sampling.vllm.vllm_sampler import import_vllm

    vllm = import_vllm()
    bound, found = default_bound("bfloat16"), {}
    with tempfile.TemporaryDirectory() as name:
        path = make(Path(name), "small" if small else "qwen2.5-0.5b", device)["model"]
        for head, overrides in _HEADS.items():
            drawn = draw(vllm, path, overrides, device, 16 if small else 256)
            found[head] = gap(path, drawn, device, bound)
            note = f"largest {found[head].max:.3g}, {found[head].share:.2%} of tokens ten bounds apart"
            yield Figure(f"gap with the output matrix in {head}", "nats", found[head].mean, bound, "<=", note)
    ratio = found["float32"].mean / found["bfloat16"].mean
    yield Figure("gap in float32 to that in bfloat16", "ratio", ratio, 1.0, "" if small else "<=")


Drawn = list[tuple[list[int], list[list[int]], list[float]]]


def draw(vllm, path: str, overrides: dict[str, str], device: str, tokens: int) -> Drawn:
    """Groups of four from an engine that is closed again: prompt, responses, the sampler's log-probs."""
    room = {"kv_cache_memory_bytes": 128 << 20} if device == "cpu" else {"gpu_memory_utilization": 0.3}
    engine = vllm.LLM(
        path,
        dtype="bfloat16",
        hf_overrides=overrides,
        enforce_eager=True,
        enable_chunked_prefill=False if device == "cpu" else None,
        max_model_len=512,
        max_num_seqs=64,
        seed=0,
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        skip_tokenizer_init=True,
        **room,
    )
    prompts = torch.randint(2, 258, (16, 128), generator=torch.Generator().manual_seed(0)).tolist()
    asked = [
        vllm.SamplingParams(n=4, seed=100 * i, temperature=1.0, max_tokens=tokens, logprobs=0, detokenize=False)
        for i in range(len(prompts))
    ]
    given = [{"prompt_token_ids": prompt} for prompt in prompts]
    drawn: Drawn = []
    for prompt, out in zip(prompts, engine.generate(given, asked, use_tqdm=False), strict=True):
        pairs = [
            (token, known[token].logprob)
            for one in out.outputs
            for token, known in zip(one.token_ids, one.logprobs, strict=True)
        ]
        drawn.append((prompt, [list(one.token_ids) for one in out.outputs], [value for _, value in pairs]))
    engine.llm_engine.engine_core.shutdown()
    return drawn


def gap(path: str, drawn: Drawn, device: str, bound: float) -> Gap:
    """To the trainer's log-probs."""
    model = load_policy(path, dtype="bfloat16", device=torch.device(device)).model
    trainer, sampler = [], []
    for prompt, responses, logprobs in drawn:
        packed = pack([(prompt, [torch.tensor(response).numpy() for response in responses])]).to(device)
        with torch.no_grad():
            trainer.append(token_statistics(model, packed, StatisticsOptions(need_entropy=False)).logprobs.cpu())
        sampler.append(torch.tensor(logprobs))
    return Gap.measure(torch.cat(sampler), torch.cat(trainer), bound)
