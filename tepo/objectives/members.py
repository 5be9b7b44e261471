"""Members that a kind of an axis has: what a class lacks of them, and what its functions return.

The `Protocol` of an axis is the only place that lists them. A user's own kind is checked against it once, when its file
is read; its functions are checked each time they return, which for a shape and a dtype costs nothing. Shipped kinds are
not watched."""

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, get_args, get_type_hints

from torch import Tensor

from tepo.common.errors import UserError
from tepo.objectives.axes.advantage import Advantage
from tepo.objectives.axes.aggregation import Aggregation
from tepo.objectives.axes.correction import Correction
from tepo.objectives.axes.importance_ratio import Ratio
from tepo.objectives.axes.overlong import Overlong
from tepo.objectives.axes.penalty import Penalty, Term
from tepo.objectives.axes.surrogate import Surrogate
from tepo.objectives.axes.weight import Weight
from tepo.objectives.batch import Groups, TokenBatch
from tepo.objectives.inputs import Expected
from tepo.objectives.terms import Terms

PROTOCOLS: dict[str, type] = {
    "overlong": Overlong,
    "advantage": Advantage,
    "ratio": Ratio,
    "surrogate": Surrogate,
    "weight": Weight,
    "correction": Correction,
    "penalty": Penalty,
    "aggregation": Aggregation,
}
TOKENS, MASK, RESPONSES = Expected("float", "token"), Expected("bool", "token"), Expected("float", "response")
# Tensors that functions return, by function, and by field where one returns several.
_RETURNED: dict[str, dict[str, Expected]] = {
    "shaped_rewards": {"": RESPONSES},
    "advantages": {"": TOKENS},
    "current": {"": TOKENS},
    "importance_ratio": {"": TOKENS},
    "gain": {"value": TOKENS, "clipped": MASK, "clipped_lower": MASK},
    "token_weights": {"": TOKENS},
    "weights": {"": TOKENS},
    "select": {"mask": MASK, "scale": TOKENS},
    "scale": {"": TOKENS},
}
_SCALAR = ("scale",)  # functions that may return one number for all tokens
_WATCHED = "_tepo_watched"  # an attribute of a function that is
_OF_ROLLOUT = ("shaped_rewards", "advantages")  # called once a rollout: their values are looked at too


def members(axis: str) -> dict[str, Any]:
    """Name -> property or function of each member that a kind of an axis has."""
    classes = [base for base in PROTOCOLS[axis].__mro__ if getattr(base, "_is_protocol", False)]
    every = [(name, value) for base in classes for name, value in vars(base).items() if not name.startswith("_")]
    return {name: value for name, value in every if isinstance(value, property) or inspect.isfunction(value)}


def declared(member: str, wanted: Any) -> str:
    """The member as its Protocol declares it: `varies: bool`, `def gain(self, terms: Terms) -> Gain`."""
    if isinstance(wanted, property):
        return f"{member}: {type_name(get_type_hints(wanted.fget)['return'])}"
    hints = get_type_hints(wanted)
    given = [f"{name}: {type_name(hints[name])}" for name in inspect.signature(wanted).parameters if name in hints]
    return f"def {member}({', '.join(['self', *given])}) -> {type_name(hints['return'])}"


def type_name(hint: Any) -> str:
    """A type as one writes it: `Tensor | None`."""
    shown = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", shown).replace("NoneType", "None")


def faults(made: type, axis: str) -> dict[str, str]:
    """Member -> what is wrong with it, of each that a class lacks or has with other arguments."""
    found, own = {}, getattr(made, "__dataclass_fields__", {})
    for member, wanted in members(axis).items():
        if member in own:
            continue
        given, says = inspect.getattr_static(made, member, None), f"`{declared(member, wanted)}`"
        if given is None and not hasattr(made, member):
            found[member] = f"lacks {says}"
        elif isinstance(wanted, property) and inspect.isfunction(given):
            found[member] = f"has {member!r} as a function without @property, not as {says}"
        elif not isinstance(wanted, property) and not _takes(getattr(made, member), wanted):
            has = (
                f"def {member}{type_name(str(inspect.signature(given)))}"
                if inspect.isfunction(given)
                else type(given).__name__
            )
            found[member] = f"has {member!r} as `{has}`, not as {says}"
    return found


def axes_of(made: type) -> list[str]:
    """Axes whose every member a class has."""
    return [axis for axis in PROTOCOLS if not faults(made, axis)]


def _takes(given: Any, wanted: Any) -> bool:
    """Tell whether a function can be called with the arguments of its Protocol's."""
    try:
        inspect.signature(given).bind(*[None] * len(inspect.signature(wanted).parameters))
    except (TypeError, ValueError):  # other arguments; no function
        return False
    return True


def wrong_value(part: Any, member: str, wanted: property) -> str:
    """The type of a plain member of a kind that its axis does not ask for, in words; empty where it does."""
    value, hint = getattr(part, member), get_type_hints(wanted.fget)["return"]
    arms = get_args(hint) or (hint,)
    plain = tuple(arm for arm in arms if isinstance(arm, type) and not getattr(arm, "_is_protocol", False))
    if len(plain) < len(arms) or isinstance(value, (*plain, *((int,) if float in plain else ()))):
        return ""
    return f"{member!r} of {type(part).__name__} is {type(value).__name__}, not {type_name(hint)}"


# what functions return ------------------------------------------------------------------------------------------------
def watched(function: Callable[..., Any], wanted: Any, where: str) -> Callable[..., Any]:
    """The function of an own kind, with a check of what it returns. where: `file:line` of it.

    It raises UserError for another type, for a tensor of another dtype, shape or device, and once a rollout for numbers
    that are not finite where the rewards are."""
    if hasattr(function, _WATCHED):
        return function
    member, hint = wanted.__name__, get_type_hints(wanted)["return"]

    @wraps(function)
    def checked(*given: Any, **named: Any) -> Any:
        value = function(*given, **named)
        sources = [*given, *named.values()]
        holder = next((one for one in map(_holder, sources) if one is not None), None)
        if wrong := _wrong_return(member, hint, value, holder):
            what, expected, fix = wrong
            raise UserError(f"{member!r} returns {what}; expected: {expected}", where=where, fix=fix)
        return value

    setattr(checked, _WATCHED, True)
    return checked


def _holder(value: Any) -> Groups | TokenBatch | None:
    """The rollout or batch that an argument is of."""
    value = value.batch if isinstance(value, Terms) else value
    return value if isinstance(value, Groups | TokenBatch) else None


def _wrong_return(
    member: str, hint: Any, value: Any, holder: Groups | TokenBatch | None
) -> tuple[str, str, str] | None:
    """The fault of a returned value, what is expected instead, and a way out; None where it has none."""
    arms = get_args(hint) or (hint,)
    if not isinstance(value, arms):
        return type(value).__name__, type_name(hint), ""
    if value is None or holder is None:
        return None
    if isinstance(value, Term) and not (isinstance(value.total, Tensor) and not value.total.dim()):
        return "no single number as `total`", "a tensor without dimensions, as `total(scale * values)`", ""
    sizes = {"token": holder.tokens, "response": len(holder.lengths)}
    for name, expected in _RETURNED.get(member, {}).items():
        tensor, label = (getattr(value, name), f"`{name}` as ") if name else (value, "")
        if tensor is None:
            continue
        if wrong := _wrong_tensor(tensor, expected, sizes, holder, scalar=member in _SCALAR):
            return label + wrong[0], expected.shown(sizes), wrong[1]
        if member in _OF_ROLLOUT and (number := _not_finite(tensor, holder)):
            return number, "finite numbers, where all rewards are", ""
    return None


def _wrong_tensor(
    value: Any, expected: Expected, sizes: Mapping[str, int], holder: Groups | TokenBatch, *, scalar: bool
) -> tuple[str, str] | None:
    """The fault of a tensor, and a way out where there is an obvious one; None where it has none. Asks for no value."""
    if not isinstance(value, Tensor):
        return type(value).__name__, ""
    size = sizes[expected.per]
    if list(value.shape) != [size] and not (scalar and not value.dim()):
        per_response = expected.per == "token" and list(value.shape) == [sizes["response"]]
        argument = "groups" if isinstance(holder, Groups) else "batch"
        fix = f"`values[{argument}.sequence]` gives each token the number of its response" if per_response else ""
        return f"a tensor of the shape {list(value.shape)}", fix
    if (expected.dtype == "bool") != (str(value.dtype) == "torch.bool") or value.dtype.is_complex:
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}", ""
    if value.device != holder.lengths.device:
        return f"a tensor on {value.device} for a batch on {holder.lengths.device}", ""
    return None


def _not_finite(value: Tensor, holder: Any) -> str:
    """The first number that is not finite without a reason in what was given."""
    given = [one for one in (holder.rewards, holder.old_entropies) if one is not None]
    if bool(value.isfinite().all()) or not all(bool(one.isfinite().all()) for one in given):
        return ""
    place = int((~value.isfinite()).nonzero()[0, 0])
    response = int(holder.sequence[place]) if len(value) == holder.tokens else place
    return f"{float(value[place])} for response {response}, whose reward is {float(holder.rewards[response]):g}"
