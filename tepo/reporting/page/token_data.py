"""Token dumps as the page shows them: how each value is coloured and explained, and the responses that fit."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tepo.store.stored_tokens import TokenDump, TokenResponse

VIEWS = (
    ("entropy_change", "Entropy change", "diverging",
     "Entropy at the token now minus when it was sampled, in nats: blue where the policy became surer, orange where it "
     "became less sure."),
    ("kl_mask", "KL mask", "mask", "The tokens to which the objective's KL penalty applies."),
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
            "responses": [
                _response(one) for one in sorted(dump.responses, key=lambda one: -prompts[one.prompt])[:limit]
            ],
        }
        for label, dump in shown
    ]
    return {"views": VIEWS, "dumps": dumps}


def _response(response: TokenResponse) -> dict[str, Any]:
    values = {name: [_short(number) for number in numbers] for name, numbers in response.values.items()}
    return vars(response) | {"values": values}


def _short(number: float | None) -> float | None:
    """Three significant digits: enough for a colour, a third of the bytes."""
    if number is None:
        return None
    short = float(f"{number:.3g}")
    return int(short) if short.is_integer() else short
