"""What the layers of a Llama-like model do between their products, compiled: norms, rotation, gates.

Eager torch reads and writes each intermediate of these; the compiler makes one kernel of each, which also keeps float32
inside. The products, attention and the modules that hold weights stay as they are, and with them adapters, hooks and
shards.
"""

from collections.abc import Callable
from functools import cache
from types import FunctionType, MethodType
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from tepo.common.errors import UserError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # whose layers compute what is written here
Function: TypeAlias = Callable[..., Any]


def norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of [..., H]."""
    wide = hidden.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(hidden.dtype)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """What a feed-forward layer with SwiGLU takes down again, [..., F]."""
    return silu(gate) * up


def rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Queries [1, Hq, M, D] and keys [1, Hk, M, D] at their positions, whose angles are [1, M, D]."""

    def turn(heads: Tensor) -> Tensor:
        first, second = heads.chunk(2, -1)
        return heads * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]

    return turn(query), turn(key)


@cache
def compiled(function: Function) -> Function:
    """The function, compiled once for all numbers of tokens."""
    return cast(Function, torch.compile(function, dynamic=True))


def compile_layers(model: nn.Module, way: Callable[[Function], Function] = compiled) -> None:
    """Put the functions of this file, each as `way` makes it, in the place of a decoder's own. Raises UserError for a
    family that computes something else."""
    config: Any = model.config
    if config.model_type not in FAMILIES or config.hidden_act != "silu":
        what = f"layers of {config.model_type} with {config.hidden_act} are not known here"
        fix = f"leave layers out; it is for {', '.join(FAMILIES)}"
        raise UserError(what, where="engine.kernels=[layers]", fix=fix)

    def normed(module: Any, hidden_states: Tensor) -> Tensor:
        return way(norm)(hidden_states, module.weight, module.variance_epsilon)

    def fed(module: Any, x: Tensor) -> Tensor:
        return cast(Tensor, module.down_proj(way(gated)(module.gate_proj(x), module.up_proj(x))))

    for module in model.modules():
        kind = type(module)
        if kind.__name__.endswith("RMSNorm"):
            module.forward = MethodType(normed, module)
        elif kind.__name__.endswith("MLP"):
            module.forward = MethodType(fed, module)
        elif kind.__name__.endswith("Attention"):  # rotates by a function of its file: of this model alone, another one
            plain: Any = kind.forward
            names = plain.__globals__ | {"apply_rotary_pos_emb": way(rotated)}
            forward = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__, plain.__closure__)
            module.forward = MethodType(forward, module)
