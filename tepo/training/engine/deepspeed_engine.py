"""Training over several ranks with DeepSpeed: ZeRO 1-3, optional offload, bf16 weights on fp32 masters.

Two habits of DeepSpeed are undone: it divides gradients by the number of ranks (the loss is multiplied by it first)
and by accumulation steps (there are none: `managed_gradient_accumulation` off, `step` is the only boundary). Nothing is
compiled at run time: the shared-memory op is switched off and the optimiser is torch's AdamW.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tepo.common.errors import UserError
from tepo.common.registry import import_package
from tepo.config.run_config import RunConfig, chosen
from tepo.policy.model.allocator import empty
from tepo.policy.model.model_location import load_config
from tepo.policy.model.weight_check import check_weights
from tepo.training.distributed.process_group import TorchComm, start, starts_again
from tepo.training.engine import optimizer_state
from tepo.training.engine.optimizer_state import Piece
from tepo.training.engine.update_rms import squared_update

_OLDEST = (0, 19)  # the first with managed_gradient_accumulation


def import_deepspeed() -> Any:
    """DeepSpeed without its run-time builds. Raises UserError when it is missing or too old."""
    deepspeed = import_package("deepspeed", "DeepSpeed", _OLDEST, "engine=deepspeed", "engine=torch on one device")
    if deepspeed.accelerator.get_accelerator().device_name() == "cpu":  # on a GPU there is no such op, and to look at
        from deepspeed.ops import __compatible_ops__  # the list would try the compiler on every other

        # else a 48 s C++ build, which hangs when a killed one left its lock
        __compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def join(device: torch.device) -> TorchComm:
    """The ranks of the run, which DeepSpeed then knows too. device: this rank's."""
    deepspeed = import_deepspeed()
    if starts_again():
        from deepspeed.utils import groups

        groups._release_process_group_references()  # it would go on with the groups of the run before
    comm = start(device)
    deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo")
    return comm


def settings(config: RunConfig, hidden: int) -> dict[str, Any]:
    """DeepSpeed's configuration. hidden: the model's width, which sets what ZeRO-3 does not bother to shard (norms)."""
    stage = config.engine.zero_stage
    offload = {"device": "cpu", "pin_memory": torch.cuda.is_available()} if config.engine.offload else None
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False, "offload_optimizer": offload}
    if stage == 3:
        zero |= {"stage3_param_persistence_threshold": 10 * hidden, "offload_param": offload}
        zero["memory_efficient_linear"] = False  # it would replace torch's function for the rest of the process
    bf16 = config.model.dtype == "bfloat16"
    types: dict[str, Any] = {"communication_data_type": "fp32"}
    if bf16:  # at stage 1 each gradient is added to its float32 sum as soon as it is there, and freed
        types |= {"bf16": {"enabled": True, "immediate_grad_update": True}}
        types["data_types"] = {"grad_accum_dtype": "fp32"}
    return {
        "train_micro_batch_size_per_gpu": 1,  # only counted, never used: micro-batches are ours
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.train.grad_clip,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        **types,
    }


class _Root(nn.Module):
    """The model as DeepSpeed sees it: the whole policy, called for its last hidden states."""

    def __init__(self, policy: PreTrainedModel):
        super().__init__()
        self.policy = policy

    def forward(self, **inputs: Any) -> Any:
        return self.policy.get_decoder()(**inputs)


class _Routed:
    """The policy with its decoder called through DeepSpeed; everything else is the policy's own."""

    def __init__(self, policy: PreTrainedModel, engine: Any):
        self._policy, self._engine = policy, engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def get_decoder(self) -> Any:
        return self._engine


class DeepSpeedEngine:
    """Implements `tepo.training.engine.engine.Engine`; every rank makes one from the same weights."""

    comm: TorchComm

    def __init__(self, model: PreTrainedModel, config: RunConfig):
        deepspeed = import_deepspeed()
        device = next(model.parameters()).device
        self.comm = join(device)
        self.stage, self.offload, self.policy = config.engine.zero_stage, chosen(config.engine.offload), model
        train = config.train
        options = optimizer_state.adamw_options(train)
        optimizer = torch.optim.AdamW(model.parameters(), **options, fused=self.offload or None)
        deepspeed_settings = settings(config, model.config.hidden_size)
        with contextlib.redirect_stdout(io.StringIO()):  # stage 1 in bfloat16 prints how much memory is taken, often
            self.engine, *_ = deepspeed.initialize(model=_Root(model), optimizer=optimizer, config=deepspeed_settings)
        self.model = cast(nn.Module, _Routed(model, self.engine))
        self.grad_clip = train.grad_clip
        self.size = sum(map(_numbers, model.parameters()))
        self.keeps_masters = config.model.dtype == "bfloat16"
        if self.stage == 3:
            self._keep_head()
        self._holds_sums = True
        self._hold_sums(False)

    def _keep_head(self) -> None:
        """Keep the output matrix whole: the fused log-prob reads it outside of any module's forward."""
        head = self.policy.get_output_embeddings().weight
        if not head.is_external_param:
            head.ds_persist = head.is_external_param = True  # not released after a forward, gathered again after a step
            self.engine.optimizer.persistent_parameters.append(head)
        if head.ds_status.name != "AVAILABLE":
            head.all_gather()

    def _hold_sums(self, in_memory: bool) -> None:
        """Take, or give back between updates, the memory of gradients that DeepSpeed would keep while others need it:
        the sums of stage 1 in bfloat16 and of stage 3, and the bucket of stage 3, 2 GB in float32."""
        if in_memory == self._holds_sums:
            return
        optimizer, buckets = self.engine.optimizer, []
        sums = list(getattr(optimizer, "fp32_groups_gradients_flat", ()))
        if self.stage == 3:
            buckets = [bucket.buffer for bucket in optimizer.ipg_buckets.values()]
            sums += [] if self.offload else [optimizer.grad_partitions_flat_buffer]
        for tensor in (*sums, *buckets):  # views of them stay views
            tensor.untyped_storage().resize_(tensor.nbytes if in_memory else 0)
        if in_memory:
            for tensor in sums:
                tensor.zero_()
        self._holds_sums = in_memory

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one micro-batch. From stage 2 on all ranks must call it equally often: the gradients of
        each are summed over the ranks there, those of stage 1 once an update."""
        self._hold_sums(True)
        self.engine.backward(loss * self.comm.world_size)

    def step(self, learning_rate: float) -> dict[str, float | Tensor]:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self.engine.step()
        if self.stage == 3:
            self._keep_head()  # a skipped update leaves it sharded
        optimizer = self.engine.optimizer
        norm = float(self.engine.get_global_grad_norm())
        skipped = bool(optimizer.overflow)
        moved: float | Tensor = 0.0
        if not skipped:  # each rank looks at its shards, at a sample of what is offloaded
            squares = squared_update(self.adam, self._flats(), sampled=self.offload).to(self.comm.device)
            moved = (self.comm.all_sum(squares) / self.size).sqrt()
        return {
            "actor/grad_norm": norm,
            "actor/grad_clipped": float(not skipped and norm > self.grad_clip),
            "actor/update_rms": moved,
            "actor/skipped": float(skipped),
        }

    def weights(self) -> Mapping[str, Tensor]:
        """See `Engine.weights`: under ZeRO-3 one tensor of it is in memory at a time. Sums of gradients end here."""
        self._hold_sums(False)
        if self.stage == 3:
            return Streamed(self.policy)
        return {name: value.detach() for name, value in self.policy.state_dict().items()}

    def load(self, folder: Path) -> None:
        """Take the state that any engine wrote; every rank reads its part."""
        parameters = dict(self.policy.named_parameters())
        for flat in self._flats():  # states of zeros, where the first update would make them
            zeros = {key: torch.zeros_like(flat, dtype=torch.float32) for key in optimizer_state.KEYS}
            self.adam.state[flat] = {"step": torch.zeros(()), **zeros}
        if hasattr(self.engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
            self.engine.optimizer._lazy_init_hp_params_optimizer_state()
        halves = {name: _numbers(value) for name, value in parameters.items() if value.dtype != torch.float32}
        for piece in optimizer_state.read(folder, halves):
            if piece.name not in parameters:
                what = f"the optimiser state belongs to another model: it has {piece.name}"
                raise UserError(what, where=str(folder), fix="resume with the run's own model")
            if piece.kind == "step":
                for state in self._states():
                    state["step"].fill_(float(piece.value))
            else:
                self._put(parameters[piece.name], piece)

    def state(self) -> Iterator[Piece]:
        """Return nothing before the first update but masters."""
        states = self._states()
        for name, parameter in self.policy.named_parameters():
            share = self._share(parameter)
            if share is None:
                continue
            start, size = share
            if states and start == 0:
                yield Piece("step", name, states[0]["step"])
            for key in (*(optimizer_state.KEYS if states else ()), *(("master",) if self.keeps_masters else ())):
                yield Piece(key, name, self._own(parameter, key)[:size], start)

    def close(self) -> None:
        """DeepSpeed's own `destroy` leaves the parameters, and at stage 3 all else: parameters, hooks and optimiser
        refer to each other where Python's garbage collection does not see it. So each lets go of what it holds."""
        engine, adam = self.engine, self.adam
        engine.destroy()
        adam.state.clear()
        adam.param_groups.clear()
        for parameter in self.policy.parameters():
            vars(parameter).clear()  # its shard, among others
        empty((*self.policy.parameters(), *self.policy.buffers()))
        vars(engine.optimizer).clear()
        vars(engine).clear()

    # the optimiser's state of a parameter; DeepSpeed keeps it in flat shards ----------------------------------------
    def _share(self, parameter: nn.Parameter) -> tuple[int, int] | None:
        """Place of this rank's numbers in the flattened parameter: the first, and how many; None without any."""
        if self.stage == 3:
            shard, full = parameter.ds_tensor.numel(), parameter.ds_numel  # type: ignore[attr-defined]
            start = shard * self.comm.rank
            return (start, min(shard, full - start)) if start < full else None  # the last shards are padded
        mapping = parameter._hp_mapping  # type: ignore[attr-defined]
        address = mapping and mapping.lp_fragment_address
        return (address.start, address.numel) if address else None

    def _own(self, parameter: nn.Parameter, key: str) -> Tensor:
        """This rank's numbers of a state (`master`: of the float32 weights), flat: the live tensor, at stage 3 padded.
        DeepSpeed's `get_local_fp32_param` would copy what is offloaded to the GPU, which a sampler has filled."""
        name = None if key == "master" else key
        if self.stage == 3:
            state, _ = self.engine.optimizer._get_fp32_opt_state_partition(parameter, False, name)
            return state.detach().view(-1)
        return parameter._hp_mapping.get_hp_fragment(name).detach()  # type: ignore[attr-defined]

    def _put(self, parameter: nn.Parameter, piece: Piece) -> None:
        """Keep of a piece what is this rank's."""
        share = self._share(parameter)
        if share is None:
            return
        span, values = piece.overlap(*share)
        if values.numel() == 0:
            return
        state = self._own(parameter, piece.kind)
        state[span] = values.to(state.device)

    def _flats(self) -> list[Tensor]:
        """This rank's float32 shards, by which torch's AdamW keeps its state."""
        optimizer = self.engine.optimizer
        # of stage 3; of 1 and 2; of bfloat16 at 1
        names = "fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"
        for name in names:
            if hasattr(optimizer, name):
                return list(getattr(optimizer, name))
        raise AssertionError(f"{type(optimizer).__name__} keeps its shards elsewhere")

    @property
    def adam(self) -> torch.optim.AdamW:
        """torch's, inside of ZeRO's optimiser."""
        return self.engine.optimizer.optimizer

    def _states(self) -> list[dict[str, Tensor]]:
        """AdamW's state of each shard, empty before the first update."""
        state = self.adam.state
        return [state[flat] for flat in self._flats() if flat in state]


def _numbers(parameter: Tensor) -> int:
    """Numbers of a parameter, of which ZeRO-3 leaves a rank none outside of a pass."""
    return getattr(parameter, "ds_numel", parameter.numel())


class Streamed(Mapping[str, Tensor]):
    """The full `state_dict` of a model under ZeRO-3, in which a tensor is gathered when it is looked up and lives as
    long as its reader holds it. Every rank looks up the same names in the same order."""

    def __init__(self, model: nn.Module):
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._buffers = dict(model.named_buffers())
        self._names = list(model.state_dict())

    def __getitem__(self, name: str) -> Tensor:
        from deepspeed.runtime.zero import GatheredParameters

        if name in self._buffers:
            return self._buffers[name].detach()
        parameter = self._parameters[name]
        if parameter.ds_status.name == "AVAILABLE":  # type: ignore[attr-defined]  # the output matrix, norms: always
            return parameter.detach()
        with GatheredParameters([parameter]):
            return parameter.detach()  # the parameter lets go of it, this name does not

    def bytes(self, name: str) -> int:
        """Bytes of the full tensor, which is not gathered for it."""
        if name in self._buffers:
            return self._buffers[name].nbytes
        parameter = self._parameters[name]
        return parameter.ds_numel * parameter.element_size()  # type: ignore[attr-defined]

    def same(self, name: str) -> int:
        """Equal for the names of tied tensors."""
        return id(self._buffers[name] if name in self._buffers else self._parameters[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextlib.contextmanager
def sharded_loading(config: RunConfig, source: str, device: torch.device) -> Iterator[None]:
    """A block in which `from_pretrained` cuts each parameter over the ranks as soon as it is made. All ranks enter it.

    The files are mapped into memory, and the first rank alone reads them. device: this rank's.
    """
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    join(device)
    model = config.model
    check_weights(source, model.revision, model.trust_remote_code)
    shape = load_config(source, model.revision, model.trust_remote_code)
    anchor = HfDeepSpeedConfig(settings(config, shape.hidden_size))  # transformers looks at it while somebody holds it
    try:
        yield
    finally:
        unset_hf_deepspeed_config()
        del anchor
