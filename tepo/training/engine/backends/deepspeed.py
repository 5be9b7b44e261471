"""engine=deepspeed: ZeRO 1 to 3 over the ranks that a launcher started, with optional offload."""

import importlib.util
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from tepo.common.errors import UserError
from tepo.common.text import counted, install_line
from tepo.config.run_config import RunConfig, chosen
from tepo.policy.model.shapes import Shape, number_bytes
from tepo.training.engine.backends import EngineBackend, EngineMemory

if TYPE_CHECKING:
    import torch

    from tepo.policy.model.load_policy import Policy
    from tepo.training.engine.engine import Engine

_BUCKET = 500_000_000  # numbers that DeepSpeed reduces at once (reduce_bucket_size)
_LIVE = 1_000_000_000  # numbers of gathered weights that ZeRO-3 lets lie (stage3_max_live_parameters)
_SUB_GROUP = 1_000_000_000  # numbers that ZeRO-3 updates at once


class DeepSpeedBackend(EngineBackend):
    shares_weights = False  # ZeRO-3 shards them
    several_ranks = True
    packages: Mapping[str, str] = {"deepspeed": f"{install_line('deepspeed')} (CPU: make engines)"}

    def check_settings(self, config: RunConfig, ranks: int) -> None:
        """Refuse what DeepSpeed would refuse in its own words or quietly do badly, and ranks that would have nothing to
        do: a mini-batch is dealt to them by sequences."""
        if config.model.lora_rank:
            what, fix = "DeepSpeed trains all weights here, no adapters", "engine=torch, or model.lora_rank=0"
            raise UserError(what, where=f"model.lora_rank={config.model.lora_rank}", fix=fix)
        if config.engine.optimizer != "adamw":
            where, fix = f"engine.optimizer={config.engine.optimizer}", "engine.optimizer=adamw, or engine=torch"
            raise UserError("DeepSpeed updates with adamw alone", where=where, fix=fix)
        train = config.train
        responses = min(train.mini_batch_prompts, train.prompts_per_step) * train.samples_per_prompt
        if ranks > responses:
            what = f"{ranks} ranks cannot share mini-batches of {counted(responses, 'response')}"
            fix = f"start at most {responses} ranks, or raise it"
            raise UserError(what, where="train.mini_batch_prompts", fix=fix)

    def check_available(self, config: RunConfig) -> None:
        from tepo.training.engine.deepspeed_engine import import_deepspeed

        import_deepspeed()
        if config.engine.zero_stage == 3 and importlib.util.find_spec("accelerate") is None:
            what, where = "transformers loads a model in shards with accelerate alone", "engine.zero_stage=3"
            raise UserError(what, where=where, fix=install_line("deepspeed"))

    def loading(self, config: RunConfig, source: str, device: "torch.device") -> AbstractContextManager[None]:
        """The ranks meet, so that a port that is taken is said before minutes of loading; in stage 3 with shards."""
        from tepo.training.engine.deepspeed_engine import join, sharded_loading

        if config.engine.zero_stage == 3:
            return sharded_loading(config, source, device)
        join(device)
        return nullcontext()

    def open(self, config: RunConfig, policy: "Policy") -> "Engine":
        from tepo.training.engine.deepspeed_engine import DeepSpeedEngine

        return DeepSpeedEngine(policy.model, config)

    def memory(self, config: RunConfig, shape: Shape, ranks: int, node_ranks: int) -> EngineMemory:
        """AdamW's two moments and float32 masters in shards, sums of gradients and those on their way, and what a step
        copies. Below stage 3 every rank loads the model into its main memory and moves it from there."""
        size, n, stage = number_bytes(config.model.dtype), float(shape.parameters), chosen(config.engine.zero_stage)
        host = (16 + size * (stage == 3)) * n * node_ranks / ranks if config.engine.offload else 0.0
        copies = 0.0 if stage == 3 else size * n * node_ranks
        optimiser = 12 * n / ranks  # ZeRO keeps masters in float32 too
        # Sums in float32: at stage 1 of all numbers until the step, at stage 3 beside an offloaded optimiser. In
        # bfloat16 stage 1 sends them as they lie, all else goes through a bucket of full size and copies of what is on
        # its way, which may be one matrix larger than it.
        sums = 0.0 if config.engine.offload and stage == 3 else 4 * n / (1 if stage == 1 else ranks)
        in_place = stage == 1 and size == 2 and not config.engine.offload
        bucket = (size if stage == 2 else 4) * _BUCKET
        gradients = sums + (not in_place) * (bucket + 6 * max(min(_BUCKET, n), shape.head_parameters))
        step = 4 * (min(_SUB_GROUP, n / ranks) if stage == 3 else n / ranks)
        weights = loading = size * n
        gathered = 0.0
        if stage == 3:  # a shard and the output matrix; in passes the layers that are not given back yet
            gathered = size * max(min(_LIVE, n), 2 * shape.layer_parameters)
            weights = size * (n / ranks + shape.head_parameters)
            loading = size * (n / ranks + max(shape.head_parameters, shape.layer_parameters))
        if config.engine.offload:
            optimiser, step = 0.0, 0.0
            weights -= size * n / ranks if stage == 3 else 0.0
        return EngineMemory(weights, gradients, optimiser, step, host, loading, gathered, copies)


BACKEND: EngineBackend = DeepSpeedBackend()
