"""Token dumps as the page shows them: how each value is coloured and explained, and the responses that fit."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tepo.reporting.page.token_classes import CLASSES, token_classes
from tepo.store.stored_tokens import TokenDump, TokenResponse, Values

VIEWS = (
    ("entropy_change", "Entropy change", "diverging",
     "Entropy at the token now minus when it was sampled, in nats: blue where the policy became surer, orange where it "
     "became less sure."),
    ("mask", "KL mask", "mask", "The tokens to which the objective's KL penalty applies."),
    ("advantage", "Advantage", "diverging",
     "How strongly the update pushes the token up (orange) or down (blue): how much better or worse its response did "
     "than its group."),
    ("ratio", "Ratio", "log",
     "The ratio of probabilities that the objective uses, now over when it was sampled: orange above 1, blue below."),
    ("log_ratio", "Token log-ratio", "diverging",
     "Logarithm of the token's own probability now over when it was sampled: orange more likely, blue less."),
    ("entropy", "Entropy", "sequential",
     "How uncertain the policy that sampled was at the token, in nats: the darker, the more open the choice."),
    ("clipped", "Clipped", "mask", "The tokens whose ratio is out of bounds: they push nothing in this update."),
    ("kl", "KL", "sequential", "What the KL penalty measures at the token, in nats."),
    ("weight", "Token weight", "sequential", "The factor on the token in the loss: 0 leaves it out."),
)  # fmt: skip
"""Token views in key order (1 …): value name, title, kind of colour scale, what it says. The page opens on the first
that differs within a response."""
WORKED_OUT = (
    "A > 0 ∧ ΔH < 0",
    "The tokens that TEPO's mask would take, by positive advantage and falling entropy: this objective has no mask.",
)
"""Title and explanation of `mask` where no mask was applied."""
_RESPONSES, _MOST, _LEAST = 2400, 32, 4  # of all dumps together, and of one


def token_data(shown: Sequence[tuple[str, TokenDump]]) -> dict[str, Any]:
    """Data of the token view. shown: a run's label and a dump, those of a run in step order.

    Of each dump as many responses as fit are taken, first those to prompts that most dumps have: these can be compared.
    """
    prompts = Counter(prompt for _, dump in shown for prompt in {response.prompt for response in dump.responses})
    limit = max(_LEAST, min(_MOST, _RESPONSES // max(1, len(shown))))
    dumps = [
        {
            "run": label,
            "step": dump.step,
            "applied": has_mask(dump),
            "total": len(dump.responses),
            "responses": [
                _response(one) for one in sorted(dump.responses, key=lambda one: -prompts[one.prompt])[:limit]
            ],
        }
        for label, dump in shown
    ]
    return {"views": VIEWS, "workedOut": WORKED_OUT, "classes": CLASSES, "dumps": dumps}


def class_rows(shown: Sequence[tuple[str, TokenDump]]) -> list[list[str]]:
    """Rows about the last dump of each run: the run with the step, its tokens, and the share of each class of them that
    the mask takes, over all its responses. With a head; empty where no dump has a mask, nor what it is made from."""
    rows = []
    for label, dump in dict(shown).items():
        tokens, known, taken = Counter[str](), Counter[str](), Counter[str]()
        for response in dump.responses:
            mask = mask_of(response) or [None] * len(response.tokens)
            for name, value in zip(token_classes(response.tokens), mask, strict=True):
                for one in (name, "all"):
                    tokens[one] += 1
                    known[one] += value is not None
                    taken[one] += bool(value)
        if known["all"]:
            words = f"{label}, step {dump.step}" + ("" if has_mask(dump) else " (no mask: where A > 0 and ΔH < 0)")
            shares = (f"{100 * taken[one] / tokens[one]:.1f}" if known[one] else "–" for one in (*CLASSES, "all"))
            rows.append([words, str(tokens["all"]), *shares])
    return [["Run", "Tokens", *(f"% of {name}" for name in (*CLASSES, "all"))], *rows] if rows else []


def mask_of(response: TokenResponse) -> Values | None:
    """The KL mask that was applied, else TEPO's (A > 0 and falling entropy; Eq. 4) worked out from the values, else
    None."""
    if "kl_mask" in response.values:
        return response.values["kl_mask"]
    advantage, change = response.values.get("advantage"), response.values.get("entropy_change")
    if advantage is None or change is None:
        return None
    return [None if a is None or h is None else float(a > 0 and h < 0) for a, h in zip(advantage, change, strict=True)]


def has_mask(dump: TokenDump) -> bool:
    """Tell whether the objective applied a mask; without one the page shows TEPO's, worked out."""
    return any("kl_mask" in response.values for response in dump.responses)


def _response(response: TokenResponse) -> dict[str, Any]:
    shown = {name: numbers for name, numbers in response.values.items() if name != "kl_mask"}
    if (mask := mask_of(response)) is not None:
        shown["mask"] = mask
    return {
        "prompt": response.prompt,
        "answer": response.answer,
        "reward": response.reward,
        "finished": response.finished,
        "group": response.group,
        "tokens": response.tokens,
        "classes": [CLASSES.index(name) for name in token_classes(response.tokens)],
        "values": {name: [_short(number) for number in numbers] for name, numbers in shown.items()},
    }


def _short(number: float | None) -> float | None:
    """Three significant digits: enough for a colour, a third of the bytes."""
    if number is None:
        return None
    short = float(f"{number:.3g}")
    return int(short) if short.is_integer() else short
