"""Attention over the packed layout, for any Hugging Face decoder that takes an attention function.

Called with a `packed_layout`, each response attends to its prompt and itself; called without one (generation, a plain
forward) it is transformers' own SDPA with its usual masks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from tepo.common.errors import UserError
from tepo.policy.model.block_attention import BlockAttention
from tepo.policy.model.compiled_layers import compile_layers
from tepo.policy.model.kernel_attention import attend, flash4
from tepo.policy.packing.block_layout import Attention, SegmentLayout

# transformers takes a name with "flash" in it for one of its own
NAME, FLASH4 = "tepo_packed", "tepo_packed_fa4"
Kernel: TypeAlias = Callable[[Tensor, Tensor, Tensor, Attention], Tensor]
# keys up to which the block attention beats SDPA's kernel on a CPU, whose backward is slow in bfloat16
_SHORT, _SHORT_NARROW = 96, 192


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    kernel: Kernel = attend,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' sense: query [1, Hq, M, D], key and value [1, Hk, M, D] -> [1, M, Hq, D].
    kernel: of long segments, and on a GPU."""
    layout: SegmentLayout | None = kwargs.pop("packed_layout", None)
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if kwargs.get("softcap") is not None or kwargs.get("s_aux") is not None:
        what = f"{type(module).__name__} uses attention sinks or soft-capping, which packed training does not support"
        raise UserError(what, fix="use a Llama-like model")
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [M, H, D], views
    how = Attention(layout, q.shape[-1] ** -0.5 if scaling is None else scaling, kwargs.get("sliding_window"))
    short = _SHORT_NARROW if q.dtype.itemsize < 4 else _SHORT
    way = BlockAttention.apply if not q.is_cuda and layout.longest_key <= short else kernel
    return way(q, k, v, how)[None], None


def prepare(model: PreTrainedModel) -> None:
    """Make a model use the packed attention (once; later calls do nothing)."""
    if model.config._attn_implementation not in (NAME, FLASH4):
        model.set_attn_implementation(NAME)


def choose_kernels(model: PreTrainedModel, kernels: Sequence[str]) -> None:
    """Have a model use the kernels that `engine.kernels` names, see `kernel_check.check_kernels`."""
    if "flash4" in kernels:
        model.set_attn_implementation(FLASH4)
    if "layers" in kernels:
        compile_layers(model)


for name, kernel in ((NAME, attend), (FLASH4, flash4)):
    AttentionInterface.register(name, partial(packed_attention, kernel=kernel))
    AttentionMaskInterface.register(name, sdpa_mask)
