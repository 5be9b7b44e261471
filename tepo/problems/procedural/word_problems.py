"""Word problems in plain English, of one to four steps: short stories in which a number grows, shrinks, is multiplied
or shared.

`words2` has two steps in the wordings that RL trains on. What is held out differs from it in one thing: `otherwords2`
tells other stories, `largewords2` has larger numbers, and `words4` more steps than a mix up to `words3`. A story is a
tuple of operands: scene, name, thing and first number, then for each step its kind, its wording and its number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tepo.problems.procedural.task import Operands, Slip

_NAMES = ("Ada", "Ben", "Carla", "David", "Emma", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kim", "Lena")
_THINGS = ("apples", "books", "cards", "eggs", "marbles", "pencils", "stamps", "stickers", "tickets", "shells")
_MORE, _FEWER, _TIMES, _SHARE = range(4)
_SIGNS = "+-*/"
_SPOKEN = ("plus", "minus", "times", "divided by")
_OPENINGS = ("", "", "First ", "Then ", "Now ", "So ")
_ENDINGS = ("", "The answer is ", "So there are ")


@dataclass(frozen=True, slots=True)
class Scene:
    """How a kind of story is told: {n} a name, {t} the things, {k} a number."""

    opening: str
    steps: tuple[tuple[str, ...], ...]  # wordings of more, fewer, times, share
    question: str


_SEEN = (
    Scene(
        "{n} has {k} {t}.",
        (
            ("{n} buys {k} more.", "A friend gives {n} {k} more.", "{n} finds another {k}."),
            ("{n} gives away {k}.", "{n} loses {k} of them.", "{n} sells {k} of them."),
            ("Then {n} collects until there are {k} times as many.", "By summer {n} has {k} times as many."),
            ("{n} splits them into {k} equal parts and keeps one part.",),
        ),
        "How many {t} are there now?",
    ),
    Scene(
        "There are {k} {t} in a box.",
        (
            ("{n} puts in {k} more.", "Somebody adds {k}."),
            ("{n} takes out {k}.", "{k} of them break and are thrown away."),
            ("{n} fills the box until it holds {k} times as many.",),
            ("{n} packs them into {k} equal bags and keeps one bag.",),
        ),
        "How many {t} are left?",
    ),
    Scene(
        "The class of {n} has collected {k} {t}.",
        (
            ("On Monday they bring {k} more.", "The teacher adds {k}."),
            ("They use up {k} of them.", "{k} go to another class."),
            ("They go on until they have {k} times as many.",),
            ("They divide them equally among {k} groups, and {n} is in one of these groups.",),
        ),
        "How many {t} does {n} see in the end?",
    ),
)
_OTHER = (
    Scene(
        "A shop opens with {k} {t} on its shelf.",
        (
            ("A delivery brings {k} more.", "Customers return {k}."),
            ("By noon {k} are sold.", "The owner {n} sets {k} aside for a friend."),
            ("The owner {n} orders so many that the shelf has {k} times what it had.",),
            ("They are spread evenly over {k} shelves, and only one shelf stays open.",),
        ),
        "What is the number of {t} on the shelf at closing time?",
    ),
    Scene(
        "Yesterday {n} counted {k} {t} in the garden.",
        (
            ("Overnight {k} were added.", "Grandmother brought {k}."),
            ("The neighbours borrowed {k}.", "The wind carried off {k}."),
            ("A week later the count was {k} times that.",),
            ("{k} cousins, {n} among them, divided what was there, and each took the same number home.",),
        ),
        "What does {n} count at the end?",
    ),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bounds of the numbers, both included."""

    first: tuple[int, int] = (10, 60)
    step: tuple[int, int] = (2, 30)
    factor: tuple[int, int] = (2, 4)
    most: int = 150  # of any result


STORIES = {
    "words": (_SEEN, Sizes()),
    "otherwords": (_OTHER, Sizes()),
    "largewords": (_SEEN, Sizes((100, 400), (20, 200), (2, 4), 999)),
}


def _outcome(value: int, kind: int, number: int) -> int:
    return (value + number, value - number, value * number, value // number)[kind]


def draw_story(scenes: Sequence[Scene], steps: int, sizes: Sizes, random: Random) -> Operands:
    """The operands of a story whose results are whole, positive and not too large."""
    scene = random.randrange(len(scenes))
    value = random.randint(*sizes.first)
    operands = [scene, random.randrange(len(_NAMES)), random.randrange(len(_THINGS)), value]
    while len(operands) < 4 + 3 * steps:
        kind = random.choice((_MORE, _MORE, _FEWER, _FEWER, _TIMES, _SHARE))
        number = random.randint(*(sizes.factor if kind in (_TIMES, _SHARE) else sizes.step))
        after = _outcome(value, kind, number)
        if 0 < after <= sizes.most and (kind != _SHARE or value % number == 0):
            operands += [kind, random.randrange(len(scenes[scene].steps[kind])), number]
            value = after
    return tuple(operands)


def tell(scenes: Sequence[Scene], *operands: int) -> str:
    """The story and its question."""
    scene = scenes[operands[0]]
    words = {"n": _NAMES[operands[1]], "t": _THINGS[operands[2]]}
    text = [scene.opening.format(k=operands[3], **words)]
    for index in range(4, len(operands), 3):
        kind, wording, number = operands[index : index + 3]
        text.append(scene.steps[kind][wording].format(k=number, **words))
    return " ".join([*text, scene.question.format(**words)])


def solve(operands: Operands, slip: Slip) -> tuple[str, int]:
    """`12 + 7 = 19. 19 - 5 = 14. `: a line a step, each from the result before it."""
    text, value = "", operands[3]
    for index in range(4, len(operands), 3):
        kind, _, number = operands[index : index + 3]
        right = max(_outcome(value, kind, number), 0)  # below it where a slip came before
        after = slip(right, [right + off for off in (-10, -2, -1, 1, 2, 10) if right + off >= 0])
        text += f"{value} {_SIGNS[kind]} {number} = {after}. "
        value = after
    return text, value


def wording(operands: Operands, random: Random) -> tuple[str, int]:
    """The working of `solve` without slips, each step in a form that is drawn: `Then 7 + 12 makes 19. 19-5=14. The
    answer is `, or `12 plus 7 is 19. Now 19 - 5 = 14. `."""
    text, value = "", operands[3]
    for index in range(4, len(operands), 3):
        kind, _, number = operands[index : index + 3]
        sign, after = _SIGNS[kind], _outcome(value, kind, number)
        forms = [f"{value} {sign} {number} = {after}. "] * 2
        forms += [f"{value} {_SPOKEN[kind]} {number} is {after}. ", f"{value}{sign}{number}={after}. "]
        forms.append(f"{value} {sign} {number} makes {after}. ")
        if kind in (_MORE, _TIMES):
            forms += [f"{number} {sign} {value} = {after}. "] * 2
        tens, units = number - number % 10, number % 10
        if kind in (_MORE, _FEWER) and tens and units and (between := _outcome(value, kind, tens)) >= 0:
            forms.append(f"{value} {sign} {tens} = {between}, {between} {sign} {units} = {after}. ")
        text += random.choice(_OPENINGS) + random.choice(forms)
        value = after
    return text + random.choice(_ENDINGS), value
