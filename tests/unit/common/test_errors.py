import pytest
from hypothesis import given
from hypothesis import strategies as st

from tepo.common.errors import nearest, unknown_name
from tepo.config.compose import _leaves
from tepo.formula.row import labels, names

NAMES, KEYS = names(), sorted(_leaves())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpso", "gspo"),  # two letters changed places
        ("tepo-no-kl", "tepo_no_kl"),
        ("TEPO-w/o. KL", "tepo_no_kl"),  # as tables print them
        ("GRPO/DAPO", "grpo_dapo"),
        ("80/20 rule", "top_entropy"),
        ("dapo", "grpo_dapo"),
        ("tep", "tepo"),
        ("adam", ""),
        ("", ""),
        ("--", ""),
    ],
)
def test_the_objective_that_is_meant_comes_first(name: str, meant: str) -> None:
    assert [*nearest(name, NAMES, labels()), ""][0] == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("trian.steps", ["train.steps"]),
        ("train.Learning-Rate", ["train.learning_rate"]),
        ("learning_rate", ["train.learning_rate"]),
        ("lr", ["model.lora_rank", "train.learning_rate"]),
        ("train.wrap", ["model.wrap"]),  # in another section
        ("train.foo", []),
    ],
)
def test_a_key_is_looked_for_in_its_section(name: str, meant: list[str]) -> None:
    assert nearest(name, KEYS) == meant


def test_of_a_section_without_a_near_key_its_keys_are_listed() -> None:
    fix = unknown_name("key", "train.foo", KEYS).fix
    assert fix == f"valid: {', '.join(key for key in KEYS if key.startswith('train.'))}"
    assert unknown_name("name", "aa", ["ab", "ac"]).fix == "did you mean 'ab' or 'ac'? valid: ab, ac"


@given(name=st.sampled_from([name for name in NAMES if len(name) > 3]), data=st.data())
def test_one_mistake_is_forgiven(name: str, data: st.DataObject) -> None:
    """The name is found, or names that are as near."""
    place = data.draw(st.integers(1, len(name) - 2))
    before, letter, after = name[:place], name[place], name[place + 1 :]
    swapped = f"{before}{after[0]}{letter}{after[1:]}"
    typed = data.draw(
        st.sampled_from([before + after, before + 2 * letter + after, f"{before}y{after}", swapped, name.upper()])
    )
    found = nearest(typed, NAMES)
    assert found
    assert name in found or len(found) == 3 or set(found) & set(nearest(typed, [one for one in NAMES if one != name]))


@given(name=st.text(max_size=12))
def test_any_text_is_answered(name: str) -> None:
    assert set(nearest(name, KEYS)) <= set(KEYS)
