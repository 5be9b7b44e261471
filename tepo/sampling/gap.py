"""The gap alarm: sampler and trainer must give the same tokens the same log-probs.

Measured on every rollout. Beyond a bound, or where it has grown since the run's first, the run stops, and the alarm
says why by experiment: it scores the same tokens again as they would look under each known fault (TRL#4159, TRL#5312,
prime-rl#697 and their like) and names the fault under which the gap vanishes. In bfloat16 rounding hides what a small
learning rate moves in a step, so there the sampler answers a few prompts after every sync, which it must not answer to
the last bit as before. Metric names of the first block are verl's.
"""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from tepo.common.errors import RunFailed
from tepo.common.text import spelt
from tepo.objectives.batch import Collectives
from tepo.policy.model.lora import adapters_off, plain_name
from tepo.sampling.sampler import Sampler, SamplingParams, Score

MEAN = "training/rollout_logprobs_diff_mean"  # the metric that the alarm goes by
_SHARE = 0.01  # a few prompts with a stale cache hardly move the mean: this share of far-off tokens rings too
_FAR = 10.0  # far off = more than this many bounds
_KEEP = 4 << 30  # bytes of previous weights worth keeping for a diagnosis
_ASKED = 16  # prompts for each engine after a sync: with LoRA a first update of 1e-6 leaves some answers as they were
_PROMPT_TOKENS, _ANSWER_TOKENS = 12, 8  # below a block of any prefix cache: an answer must not depend on what it holds

Answers: TypeAlias = list[bytes]
"""Tokens and log-probs of a sampler for given prompts and keys, bit for bit, of each of its engines."""


@dataclass(frozen=True, slots=True)
class GapLimits:
    """Mean absolute log-prob gaps of sampler and trainer, in nats."""

    bound: float  # beyond it a run ends
    ratio: float  # a gap of so many times the run's first is no rounding any more
    least: float  # a gap below it has never grown, however small the first was
    most: float  # a gap above it always has, however large the first was
    stops: bool  # whether growth ends the run; else it warns


# notes/2026-11-23.md, "The gap of sampler and trainer", has what these follow from.
# float32: rounding is 2e-7, in a policy that a rate of 1e-3 destroyed 1.3e-6, in a random one 2e-6: `least` is above.
# The first rollout after a sync left out at 1e-6 has 1.1e-4: `most` is below, which bounds a stale first one too.
_FLOAT32 = GapLimits(1e-3, ratio=10, least=1e-5, most=3e-5, stops=True)
# bfloat16: rounding is 0.002 to 0.04. It and staleness add as squares, so twice the first gap is staleness of 1.7 times
# the rounding. No GPU has measured either: it warns.
_BFLOAT16 = GapLimits(0.1, ratio=2, least=0.005, most=0.03, stops=False)


def _limits(*dtypes: str) -> GapLimits:
    return _FLOAT32 if {*dtypes} == {"float32"} else _BFLOAT16


def default_bound(dtype: str) -> float:
    """Mean absolute log-prob gap that is still rounding. Measured with vLLM 0.32 on random Qwen2 models of entropy 4.6
    and 2.9 nats: float32 3e-7 and 2e-6, bfloat16 0.005 and 0.04."""
    return _limits(dtype).bound


def _place(value: Tensor) -> tuple[object, ...]:
    """Equal for the names of tied tensors."""
    return value.data_ptr(), value.dtype, *value.shape


def ask(sampler: Sampler, prompts: Callable[[int], Sequence[Sequence[int]]], longest: int, engines: int) -> Answers:
    """Answers of a sampler as it is, to pieces from the middle of prompts, which leave open how to go on.

    prompts: gives as many as it is asked for. longest: tokens of a response that there is room for. engines: that take
    requests in turn."""
    middles = [prompt[max(0, (len(prompt) - _PROMPT_TOKENS) // 2) :] for prompt in prompts(_ASKED * engines)]
    params = SamplingParams(n=1, temperature=1.0, max_new_tokens=min(longest, _ANSWER_TOKENS))
    groups = sampler.sample([piece[:_PROMPT_TOKENS] for piece in middles], range(len(middles)), params)
    answers = [response.tokens.tobytes() + response.logprobs.tobytes() for group in groups for response in group]
    return [b"".join(answers[engine::engines]) for engine in range(engines)]


@dataclass(frozen=True, slots=True)
class Gap:
    """Sampler against trainer over all response tokens of a rollout (all ranks): probabilities and log-probs."""

    mean: float
    max: float
    share: float  # of tokens whose log-probs differ by more than ten bounds
    tokens: float
    error: float  # standard error of `mean`
    metrics: dict[str, float]

    @classmethod
    def measure(cls, sampler: Tensor, trainer: Tensor, bound: float, comm: Collectives | None = None) -> "Gap":
        """sampler, trainer: log-probs [N] of the same tokens. A NaN on either side counts as an infinite gap."""
        s, t = sampler.detach().double().cpu(), trainer.detach().double().cpu()
        p, q = s.exp(), t.exp()
        off = (s - t).abs().nan_to_num(nan=math.inf, posinf=math.inf)
        apart = (p - q).abs().nan_to_num(nan=1.0)
        far = (off > _FAR * bound).double()
        parts = (torch.ones_like(s), apart, apart**2, off, off**2, far, p, q, p * p, q * q, p * q)
        sums = torch.stack([x.sum() for x in parts])
        tops = torch.stack([apart.max(), off.max()]) if len(s) else torch.zeros(2, dtype=torch.float64)
        if comm is not None:
            sums = comm.all_sum(sums)
            tops = torch.stack(comm.all_gather(tops)).amax(0)
        n = max(float(sums[0]), 1.0)
        apart_mean, square, mean, off_square, share, mp, mq, pp, qq, pq = (sums[1:] / n).tolist()
        spread = math.sqrt(max((pp - mp * mp) * (qq - mq * mq), 0.0))
        metrics = {
            "training/rollout_probs_diff_mean": apart_mean,
            "training/rollout_probs_diff_std": math.sqrt(max(square - apart_mean**2, 0.0)),
            "training/rollout_probs_diff_max": float(tops[0]),
            "training/rollout_actor_probs_pearson_corr": (pq - mp * mq) / spread if spread > 0 else 1.0,
            MEAN: mean,
            "training/rollout_logprobs_diff_max": float(tops[1]),
            "training/rollout_logprobs_diff_share": share,
        }
        error = math.sqrt(max(off_square - mean**2, 0.0) / n) if math.isfinite(mean) else math.inf
        return cls(mean, float(tops[1]), share, n, error, metrics)

    def within(self, bound: float) -> bool:
        """Small enough to train on; False for NaN. Of the few tokens that a rollout with one mixed group has, three are
        more than the share by mere luck."""
        luck = 3 * math.sqrt(_SHARE * (1 - _SHARE) / self.tokens)
        return self.mean <= bound and self.share <= _SHARE + luck


Cause: TypeAlias = tuple[str, Gap, str]
"""A fault that would explain the gap: its name, the gap that is left under it, and what to do."""


@dataclass(frozen=True)
class Evidence:
    """Means to score the same tokens again."""

    score: Callable[[float], Tensor]  # at a temperature: the trainer's log-probs [N] in the order of the check
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]] = ()  # prompt and response of each, in that order
    model: nn.Module | None = None  # whose parameters may be swapped for a moment


@contextlib.contextmanager
def borrowed_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with other parameters for a moment. Tied ones may get different values, nothing is copied."""
    places = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if (key := plain_name(name)) in weights:
            owner, _, leaf = name.rpartition(".")
            places.append((model.get_submodule(owner), leaf, parameter, weights[key].to(parameter.device)))
    try:
        for module, leaf, _, value in places:
            setattr(module, leaf, nn.Parameter(value, requires_grad=False))
        yield
    finally:
        for module, leaf, parameter, _ in places:
            setattr(module, leaf, parameter)


class GapAlarm:
    """Checks every rollout and, where it can ask, every sync.

    Why it is needed: the gradient of an importance-sampled loss is right where the sampler's probabilities are those of
    the policy that the trainer calls old. A sampler that missed a sync, samples at another temperature or computes
    otherwise still gives fluent responses; the reward goes up for a while, and nothing but this figure shows it.

    bound: of the gap, `GapLimits.bound`; the other limits move with it. temperature: of the rollouts. dtypes: of
    sampler and trainer. fresh: the sampler's `score`.
    first: the mean gap of the run's first rollout, to be set where a run is resumed.
    """

    def __init__(
        self,
        bound: float,
        *,
        temperature: float,
        dtypes: tuple[str, str],
        comm: Collectives | None = None,
        fresh: Score | None = None,
    ):
        self.bound, self.temperature, self.comm, self.fresh = bound, temperature, comm, fresh
        self.sampler_dtype, self.trainer_dtype = dtypes
        self.limits = _limits(*dtypes)
        self.first: float | None = None
        self.now: dict[str, Tensor] = {}
        self.previous: dict[str, Tensor] = {}
        self._heard: tuple[list[int], Answers] | None = None  # after the last sync: marks of the weights, and answers
        self._warned: set[str] = set()
        self._measure = partial(Gap.measure, bound=bound, comm=comm)

    def synced(self, weights: Mapping[str, Tensor], answers: Answers | None = None) -> None:
        """Remember the weights that the sampler was just given; answers: what it then answers, see `ask`. All ranks
        call it. Warns where answers are as after the sync before although the weights are not."""
        self._keep(weights)
        deaf = 0
        if answers is not None:
            # A number for each tensor that changes with its bits: their sum, in one pass where the weights lie.
            whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
            bits = (value.detach().contiguous().view(whole[value.element_size()]) for value in weights.values())
            marks = torch.stack([value.sum(dtype=torch.int64) for value in bits]).tolist()
            if self._heard is not None and self._heard[0] != marks:
                deaf = sum(map(bytes.__eq__, answers, self._heard[1]))
            self._heard = marks, answers
        if self.comm is not None:
            deaf = int(self.comm.all_sum(torch.tensor(float(deaf), dtype=torch.float64)))
        if deaf:
            what = f"after a sync {deaf} samplers answer to the last bit as before, although the weights have changed"
            self._warn(what, "check that sync reaches every sampler: rollouts may be those of an earlier policy")

    def _keep(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the weights into main memory, tied ones once; not those of models above 4 GiB. Two sets of buffers take
        turns. They are pinned beside a GPU, so that nobody waits: it copies before it goes on to the next update."""
        spare, self.previous, self.now = self.previous, self.now, {}
        live: dict[tuple[object, ...], tuple[str, Tensor]] = {}
        for name, value in weights.items():
            live.setdefault(_place(value), (name, value.detach()))
        if sum(value.nbytes for _, value in live.values()) > _KEEP:
            return
        copies = {}
        for place, (name, value) in live.items():
            buffer = spare[name] if name in spare else torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
            copies[place] = buffer.copy_(value, non_blocking=True)
        self.now = {name: copies[_place(value)] for name, value in weights.items()}

    def check(
        self, sampler: Tensor, trainer: Tensor, evidence: Evidence | None = None, *, where: str = ""
    ) -> dict[str, float]:
        """Metrics of the gap between log-probs [N].
        Raises RunFailed with the likely cause when it is beyond the bound, or has grown and growth stops."""
        gap = self._measure(sampler, trainer)
        self.first = gap.mean if self.first is None else self.first
        limit, limit_text, scale = self.bound, f"bound {self.bound:g}", self.bound / self.limits.bound
        if gap.within(limit):
            limit = scale * min(max(self.limits.ratio * self.first / scale, self.limits.least), self.limits.most)
            limit_text = f"{self.first:.2g} in the first rollout, at most {limit:.2g} now"
            if gap.mean <= limit:
                return gap.metrics
            if not self.limits.stops:
                if gap.mean - 3 * gap.error <= limit:  # too few tokens to tell
                    return gap.metrics
                what = f"{where}: mean log-prob gap of sampler and trainer {gap.mean:.2g} ({limit_text})"
                self._warn(what, "rounding, or weights that did not reach the sampler; training goes on")
                return gap.metrics
        cause = self._diagnose(sampler, trainer, evidence, limit) if evidence else None
        if cause:
            name, note, fix = cause[0], f" (gap left under it: {cause[1].mean:.2g})", cause[2]
        elif self.sampler_dtype != self.trainer_dtype and gap.mean < 0.2:
            name, note = f"dtype: the sampler computes in {self.sampler_dtype}, the trainer in {self.trainer_dtype}", ""
            fix = f"use one dtype (model.dtype), or raise sampler.gap_bound above {gap.mean:.2g} if it stays there"
        else:
            tried = "temperature" + (" and prefix cache" if self.fresh else "")
            note = f"; ruled out: {tried if evidence else 'nothing (no evidence could be taken)'}"
            note += ", weights of the sync before" if self.previous else ""
            name = "weights never synced since the start, or the two implement the model differently (RoPE, dtype …)"
            fix = "check that sync reaches every sampler, and compare both on the starting weights"
        raise RunFailed(
            f"sampler and trainer disagree on the sampled tokens: mean log-prob gap {gap.mean:.3g} ({limit_text}), "
            f"max {gap.max:.3g}, {gap.share:.1%} of tokens off by more than {_FAR * self.bound:g}\n"
            f"likely cause: {name}{note}",
            where=where,
            fix=fix,
        )

    def _warn(self, what: str, fix: str) -> None:
        """Say it once a process, on the first rank."""
        if fix not in self._warned and getattr(self.comm, "rank", 0) == 0:
            sys.stderr.write(f"{spelt(f'warning: {what}; {fix}')}\n")
        self._warned.add(fix)

    @torch.no_grad()
    def _diagnose(self, sampler: Tensor, trainer: Tensor, evidence: Evidence, limit: float) -> Cause | None:
        """The fault that leaves the smallest gap, if one leaves a gap within the limit. The prefix cache comes last:
        its test is made at temperature 1 with fresh log-probs, so other faults of `sample` would pass it too."""
        causes = [self._temperature(sampler, evidence, limit), *self._old_weights(sampler, evidence)]
        explained = [cause for cause in causes if cause[1].within(limit)]
        if explained:
            return min(explained, key=lambda cause: cause[1].mean)
        again = self.fresh(evidence.sequences) if self.fresh is not None else None
        if again is not None:  # on all ranks or on none: what follows is a collective, for a rank without sequences too
            gap = self._measure(torch.cat([torch.empty(0), *map(torch.from_numpy, again)]), evidence.score(1.0).cpu())
            if gap.within(limit):
                name = "stale prefix cache: scored afresh, without the cache, the sampler agrees with the trainer"
                return name, gap, "reset the sampler's prefix cache after every sync (VllmSampler.sync does)"
        return None

    def _temperature(self, sampler: Tensor, evidence: Evidence, limit: float) -> Cause:
        """The temperature at which the trainer comes closest to the sampler: 1 (raw log-probs), or else one between 1/4
        and 4."""
        from scipy.optimize import minimize_scalar

        tried: dict[float, Gap] = {}

        def gap_at(log: float) -> float:
            value = math.exp(log)
            tried[value] = self._measure(sampler, evidence.score(value))
            return tried[value].mean if math.isfinite(tried[value].mean) else sys.float_info.max

        gap_at(0.0)
        if not tried[1.0].within(limit):
            minimize_scalar(gap_at, bounds=(math.log(0.25), math.log(4.0)), options={"xatol": 1e-5})
        best = min(tried, key=lambda value: tried[value].mean)
        name = f"temperature mismatch: the sampler's log-probs are those of temperature {best:.3g}, "
        name += f"the trainer's of {self.temperature:.3g}" + (" (raw log-probs?)" if best == 1.0 else "")
        fix = "sample at train.temperature and return processed log-probs (logprobs_mode=processed_logprobs); "
        return name, tried[best], fix + "no top-p, top-k or penalties"

    def _old_weights(self, sampler: Tensor, evidence: Evidence) -> list[Cause]:
        """Causes by the weights of the sync before, all of them or the output head alone: the gap is gone with them."""
        model, previous = evidence.model, self.previous
        sharded = model is not None and any(hasattr(parameter, "ds_id") for parameter in model.parameters())  # ZeRO-3
        if model is None or not previous or sharded:
            return []
        with borrowed_weights(model, previous), adapters_off(model):  # they were merged into what was synced
            whole = self._measure(sampler, evidence.score(self.temperature))
        with borrowed_weights(model, {"lm_head.weight": previous["lm_head.weight"]}):
            head = self._measure(sampler, evidence.score(self.temperature))
        name = "weights not synced: the sampler still has the weights of the sync before"
        old = name, whole, "call sampler.sync(engine.weights()) after the last update of every rollout"
        name = "forgotten lm_head: the sampler has the new weights but the old output head"
        fix = "put lm_head.weight into the synced weights; tied models leave it out of named_parameters()"
        return [old, (name, head, fix)]
