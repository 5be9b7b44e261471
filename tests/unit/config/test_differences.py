import pytest

from tepo.config.compose import compose, to_dict
from tepo.config.differences import settings_apart


def apart(*overrides: list[str]) -> list[str]:
    configs = [to_dict(compose(words)) for words in overrides]
    return settings_apart([config["objective"]["name"] for config in configs], configs)


def test_what_differs_from_the_usual_value_is_named() -> None:
    settings = apart([], ["seed=1"], ["train.epochs=1", "store=elsewhere"], ["objective=gspo", "train.epochs=5"])
    assert settings == ["", "", "train.epochs=1", ""]


def test_no_two_that_differ_are_left_alike() -> None:
    settings = apart(["objective.beta=1"], ["objective.beta=2"], ["objective.beta=2", "train.epochs=1"])
    assert settings == ["objective.beta=1.0", "", "train.epochs=1"]


def test_lines_are_named_as_they_are_set() -> None:
    """M, kl, beta and tol fall away where J does not read them."""
    settings = apart([], [], [], ["objective.J=w*A"], ["objective.M=A > 0", "objective.average=sums"])
    assert settings == ["", "", "", "objective.J=w*A", "objective.M=A > 0 objective.average=sums"]


def test_a_file_is_shown_by_its_hash() -> None:
    configs = [{"files": {"a.py": f"one\n{two}\n"}} for two in ("two", "two", "three")]
    *alike, other = settings_apart(["x"] * 3, configs)
    assert alike == ["", ""]
    assert other.startswith("files.a.py=")
    assert len(other) == len("files.a.py=") + 12


@pytest.mark.parametrize("order", [1, -1])
def test_of_equally_usual_values_the_one_that_is_set_is_shown(order: int) -> None:
    configs = [{"train": {"kind": "square"}}, {"train": {"kind": "square", "width": 0.4}}]
    assert settings_apart(["x", "x"], configs[::order]) == ["", "train.width=0.4"][::order]
