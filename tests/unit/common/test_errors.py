import pytest

from tepo.common.errors import nearest
from tepo.config.compose import _leaves
from tepo.formula.row import labels, names

NAMES, KEYS = names(), sorted(_leaves())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpso", "gspo"),  # two letters changed places
        ("TEPO-w/o. KL", "tepo_no_kl"),  # as tables print them
        ("dapo", "grpo_dapo"),
        ("adam", ""),
        ("", ""),
    ],
)
def test_the_objective_that_is_meant_comes_first(name: str, meant: str) -> None:
    assert [*nearest(name, NAMES, labels()), ""][0] == meant


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("trian.steps", ["train.steps"]),
        ("learning_rate", ["train.learning_rate"]),
        ("train.wrap", ["model.wrap"]),  # in another section
        ("train.foo", []),
    ],
)
def test_a_key_is_looked_for_in_its_section(name: str, meant: list[str]) -> None:
    assert nearest(name, KEYS) == meant
