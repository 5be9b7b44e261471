from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.formula.row import load_row
from tepo.objectives import load_objective
from tepo.store.run_id import run_id, settings


def formula(*words: str) -> dict[str, str]:
    return compose(words).objective["formula"]


def test_constants_lines_average_and_filter_are_set() -> None:
    assert compose(["objective=tepo", "objective.beta=1"]).objective["constants"]["beta"] == 1
    assert compose(["objective=gspo", "objective.low=3e-3"]).objective["constants"]["low"] == 0.003
    lines = ["objective.w=exp(d)", "objective.J='min(w, 1.28)*A'"]
    found = compose([*lines, "objective.average=responses", "objective.keep=finished"]).objective
    assert found["formula"] == {"A": "(R - mean_g(R)) / (std_g(R) + eps)", "w": "exp(d)", "J": "min(w, 1.28)*A"}
    assert found["constants"] == {"eps": 1e-6}, "what nothing reads is not kept"
    assert (found["name"], found["average"], found["keep"]) == ("tepo", "responses", "finished")
    extra = formula("objective.k=0.5*kl", "objective.J=w*A - beta*M*k")
    assert (extra["k"], extra["kl"]) == ("0.5*kl", "kl_old")


def test_a_file_is_like_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.v2.yaml"
    path.write_text("about: mine\nlike: gspo\nformula: {w: exp(d)}\nconstants: {low: {value: 0.1, source: mine}}\n")
    found = compose([f"objective={path}", "objective.high=0.2"]).objective
    assert (found["name"], found["formula"]["w"]) == ("mine.v2", "exp(d)")
    assert load_objective(found).name == "mine.v2"
    assert (found["constants"]["low"], found["constants"]["high"], found["average"]) == (0.1, 0.2, "responses")


def test_a_file_is_not_like_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.yaml").write_text("like: tepo\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "up.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    (tmp_path / "mine" / "method.yaml").write_text("like: up\n")
    with pytest.raises(UserError, match="is a link") as caught:
        load_row(tmp_path / "mine" / "method.yaml")
    assert caught.value.where == f"{tmp_path}/mine/method.yaml:1 (like)"


# the exact KL ---------------------------------------------------------------------------------------------------------
def test_the_exact_kl_takes_the_place_of_k3_alone() -> None:
    names = ("tepo", "grpo", "kl_cov", "dppo_squared_kl", "dro")
    found = {name: formula(f"objective={name}")["kl"] for name in names}
    exact = {"tepo": "kl_old", "grpo": "kl_initial"}
    assert found == exact | {"kl_cov": "abs(d)", "dppo_squared_kl": "k2(d)", "dro": "mean_i(d)**2*T/2"}
    assert "kl" not in formula("objective=tepo_no_kl")
    assert formula("objective=tepo", "train.exact_kl=false")["kl"] == "k3(d)"
    assert formula("objective=tepo", "objective.kl=k3(d)")["kl"] == "k3(d)", "where it is asked for"
    assert formula("scale=paper", "objective=tepo")["kl"] == "k3(d)"


# ids ------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["objective.beta=1"], ["objective.beta=1.0"]),
        (["objective.w=exp(mean_i(d))"], []),
        (["objective.J=min(A * w, A*clip(w, 1 - low, high + 1)) - M*beta*kl"], []),
        (["objective.average=1/N"], ["objective.average=tokens"]),
        (["objective.kl=kl_old", "train.exact_kl=false"], []),
        (["objective=gspo", "train.exact_kl=false"], ["objective=gspo"]),
        (["objective=tepo", "objective.M=1"], ["objective=tepo_kl_all"]),
    ],
)
def test_two_ways_to_ask_for_the_same_objective_are_one_run(one: list[str], other: list[str]) -> None:
    first, second = compose(one), compose(other)
    assert settings(first)["objective"] == settings(second)["objective"]
    assert run_id(first) == run_id(second)


def test_a_file_is_read_again_also_where_the_one_that_it_is_like_changed(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("like: below\nconstants: {beta: 1}\n")
    seen = []
    for line in ("M: A > 0", "M: A < 0"):
        (tmp_path / "below.yaml").write_text(f"like: tepo\nformula: {{{line}}}\n")
        seen.append(compose([f"objective={tmp_path / 'mine.yaml'}"]).objective["formula"]["M"])
    assert seen == ["A > 0", "A < 0"]


def test_the_id_is_of_what_is_read_and_not_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("about: other words\nlike: tepo\nconstants: {beta: {value: 1.0e-3, source: another}}\n")
    assert run_id(compose([f"objective={path}"])) == run_id(compose(["objective=tepo"]))
