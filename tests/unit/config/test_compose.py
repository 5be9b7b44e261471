import re
import shlex
from pathlib import Path

import hypothesis
import pytest
import typer
import yaml
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from tepo.common import interpreter
from tepo.common.errors import UserError
from tepo.common.paths import CONFIG
from tepo.common.trust import caller, say
from tepo.config.compose import GROUPS, compose, options, to_dict
from tepo.config.differences import settings_apart
from tepo.formula.row import load_row
from tepo.launch.local import command
from tepo.objectives import load_objective
from tepo.store.run_id import run_id, settings
from tepo.studies.plan import make_plan
from tepo.studies.study import load_study, parse_study
from tepo.training.run import Run
from tepo_cli.cli_options import compose_run
from tepo_cli.main import app
from tepo_cli.train_run import compose_one
from tests.support.runs import write
from tests.unit.config.train_keys import PAGE, page


def test_overrides_of_groups_and_leaves() -> None:
    words = ("objective=grpo_dapo", "seed=3", "train.steps=40", "data.benchmarks=[add3]")
    config = compose([*words, "objective.high=0.3"])
    assert (config.seed, config.train.steps, config.data.benchmarks) == (3, 40, ["add3"])
    assert (config.objective["name"], config.objective["constants"]["high"]) == ("grpo_dapo", 0.3)


@pytest.mark.parametrize(
    ("override", "wrong", "near"),
    [
        ("train.stepz=3", "train.stepz", "train.steps"),
        ("model=mistral", "mistral", "mistral-7b-instruct-v0.2"),
        ("steps=3", "steps", "train.steps"),
    ],
)
def test_a_typo_names_the_nearest(override: str, wrong: str, near: str) -> None:
    with pytest.raises(UserError) as caught:
        compose([override])
    assert wrong in caught.value.what
    assert f"did you mean {near!r}" in caught.value.fix


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.samples_per_prompt=0", "train.samples_per_prompt must be between 1 and"),
        ("train.top_p=0.9", "training draws from the whole policy"),
        ("data.kind=problems", "names no problems"),
        ("objective.name=mine", "name is that of its file"),
    ],
)
def test_a_value_that_no_run_can_have_is_refused_when_it_is_composed(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose([override])


@pytest.mark.parametrize("folder", ["/a,b=c(d)", "/it's", "~/x"])
def test_a_folder_is_taken_as_it_is_written(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert compose([f"store={folder}"]).store == folder.replace("~", "/home/someone")
    assert compose([f"model.path={folder}"]).model.path == folder


@pytest.mark.parametrize("group", GROUPS)
def test_every_option_of_every_group_composes(group: str) -> None:
    for option in options(group):
        compose([f"{group}={option}"])


def test_what_one_command_sets_no_other_has() -> None:
    """Also where both are of the same options, which are resolved once; nor what is done to a configuration."""
    default = compose([])
    other = compose(["train.steps=3", "data.benchmarks=[add3]", "objective.beta=0.5"])
    other.data.benchmarks.append("add4")
    other.data.tasks["add4"] = 1.0
    other.objective["name"] = "another"
    assert compose([]) == default
    assert compose(["train.steps=3", "data.benchmarks=[add3]"]).data.benchmarks == ["add3"]


def apart(*overrides: list[str]) -> list[str]:
    configs = [to_dict(compose(words)) for words in overrides]
    return settings_apart([config["objective"]["name"] for config in configs], configs)


def test_what_differs_from_the_usual_value_is_named_and_no_two_are_left_alike() -> None:
    settings = apart([], ["seed=1"], ["train.epochs=1", "store=elsewhere"], ["objective=gspo", "train.epochs=5"])
    assert settings == ["", "", "train.epochs=1", ""]
    settings = apart(["objective.beta=1"], ["objective.beta=2"], ["objective.beta=2", "train.epochs=1"])
    assert settings == ["objective.beta=1.0", "", "train.epochs=1"]


def test_the_page_has_every_key_with_its_values_and_meaning() -> None:
    assert PAGE.read_text() == page(), "python -m tests.unit.config.train_keys"


PAPER_MODELS = {
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen3-14b": "Qwen/Qwen3-14B",
    "deepseek-r1-distill-llama-8b": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "mistral-7b-instruct-v0.2": "mistralai/Mistral-7B-Instruct-v0.2",
    "deepseek-r1-distill-qwen-7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "qwen2.5-32b": "Qwen/Qwen2.5-32B",
}


@pytest.mark.parametrize("model", PAPER_MODELS)
def test_every_model_composes_for_gpus(model: str) -> None:
    config = compose(["scale=paper", f"model={model}"])
    assert config.model.path == PAPER_MODELS[model]
    assert re.fullmatch("[0-9a-f]{40}", config.model.revision or "")
    assert (config.model.dtype, config.model.trust_remote_code) == ("bfloat16", False)
    assert config.model.gradient_checkpointing is None  # the planner's choice
    assert (config.sampler.kind, config.engine.kind) == ("vllm", "deepspeed")


def test_settings_of_the_paper() -> None:
    """TEPO section 4.1; the code base of Cui et al. where it is silent."""
    config = compose(["scale=paper"])
    train = config.train
    assert (train.steps, train.prompts_per_step, train.samples_per_prompt, train.temperature) == (72, 64, 8, 1.0)
    assert (train.max_prompt_tokens, train.max_new_tokens) == (2048, 8192)
    assert train.prompts_per_step // train.mini_batch_prompts * train.epochs == 8  # updates a rollout
    assert (train.learning_rate, train.warmup_steps, train.weight_decay, train.grad_clip) == (5e-7, 0, 0.0, 1.0)
    assert (train.max_rounds, train.exact_kl) == (10, False)
    data = config.data
    assert (data.problems, data.prompt, data.overlong_prompts) == ("dapo_math", "boxed", "truncate")
    assert config.data.benchmarks == ["aime24", "aime25", "amc", "math500", "omni_math", "olympiadbench", "minerva"]


@pytest.mark.parametrize("file", ["scale/paper.yaml", *(f"model/{model}.yaml" for model in PAPER_MODELS)])
def test_what_a_file_sets_arrives(file: str) -> None:
    """A default composed later would win without a word."""
    group, _, option = file.removesuffix(".yaml").partition("/")
    config = to_dict(compose(["scale=paper", f"{group}={option}"]))
    written = yaml.safe_load((CONFIG / file).read_text())
    for section, value in (written if "model" in written or group == "scale" else {"model": written}).items():
        if isinstance(value, dict) and section != "defaults":
            assert {key: config[section][key] for key in value} == value, section


def test_tepo_at_paper_scale() -> None:
    config = compose(["scale=paper", "objective=tepo"])
    constants = config.objective["constants"]
    assert (constants["low"], constants["high"], constants["beta"]) == (0.2, 0.28, 0.001)
    assert config.objective["formula"]["kl"] == "k3(d)"
    needs = load_objective(config.objective).needs
    assert not needs.initial_logprobs  # no second model beside the policy
    assert not needs.full_kl  # nothing of the size of the vocabulary is kept


def test_the_coefficient_of_each_model(tmp_path: Path) -> None:
    units = [unit for unit in make_plan(load_study("table1"), "paper", store=tmp_path) if unit.row.objective == "tepo"]
    assert {unit.model: unit.config.objective["constants"]["beta"] for unit in units} == {
        "qwen2.5-7b": 0.001,
        "qwen3-14b": 1,
    }


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


def test_the_exact_kl_takes_the_place_of_k3_alone() -> None:
    names = ("tepo", "grpo", "kl_cov", "dppo_squared_kl", "dro")
    found = {name: formula(f"objective={name}")["kl"] for name in names}
    exact = {"tepo": "kl_old", "grpo": "kl_initial"}
    assert found == exact | {"kl_cov": "abs(d)", "dppo_squared_kl": "k2(d)", "dro": "mean_i(d)**2*T/2"}
    assert "kl" not in formula("objective=tepo_no_kl")
    assert formula("objective=tepo", "train.exact_kl=false")["kl"] == "k3(d)"
    assert formula("objective=tepo", "objective.kl=k3(d)")["kl"] == "k3(d)", "where it is asked for"
    assert formula("scale=paper", "objective=tepo")["kl"] == "k3(d)"


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


NUMBERS = ("12e4567", "7e5", "007", "1_000", "0x10", "1:30", ".5", "12.10", "1e5", "nan", "inf", "-0", "2024-01-05")
WORDS = ("true", "True", "yes", "on", "off", "~", "str(5)", "range(1,3)", "1,2")
SYNTAX = ("a#b", "a'b", "a,b", "ü €", " a ", "a=b", "{a: 1}", "[a]", "$x", "a:b", "a\\", "a\\'b", "!x", "a\nb", "'a'b")
NASTY = (*NUMBERS, *WORDS, *SYNTAX)


@pytest.mark.parametrize("text", NASTY)
def test_text_is_what_was_typed(text: str) -> None:
    config = compose([f"model.revision={text}", f"tracking.project={text}", f"model.name={text}", f"data.name={text}"])
    assert (config.model.revision, config.tracking.project, config.model.name, config.data.name) == (text,) * 4
    assert compose([f"data.base={text}"]).model.path == text


TYPED = {"'a, b'": "a, b", '"7e5"': "7e5", r"'it\'s'": "it's", "'null'": "null", "''": "", "": "", "null": None}


@pytest.mark.parametrize("typed", TYPED)
def test_quotes_all_around_are_no_part_of_it_and_null_is_none(typed: str) -> None:
    assert compose([f"tracking.group={typed}"]).tracking.group == TYPED[typed]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("train.steps=4#0", "train.steps must be a whole number, not '4#0'"),
        ("data.reward={short: {file: a#b.py}}", "is no list or mapping that can be read"),
    ],
)
def test_no_message_is_that_of_a_parser(word: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        compose([word])
    assert message in caught.value.what
    assert not any(name in str(caught.value) for name in ("Exception", "alternative", "mismatched", "annotation"))


@pytest.mark.parametrize("text", ["7e5", "010", "off"])
def test_text_of_an_option_that_yaml_takes_for_something_else_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model" / "mine.yaml", f"name: mine\npath: package:laptop\nrevision: {text}\n")
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"model\.revision is text, and YAML reads what is written there as") as caught:
        compose(["model=mine"])
    assert caught.value.where.startswith(f"{path}:3")
    write(path, path.read_text().replace(text, f"'{text}'"))
    assert compose(["model=mine"]).model.revision == text


def study_of(folder: Path, words: tuple[str, ...]) -> Path:
    rows = [{"label": "GRPO", "objective": "grpo", "overrides": list(words)}]
    plain = {"title": "", "rows": rows, "scales": {"laptop": {"models": ["laptop"], "seeds": [0]}}}
    return write(folder / "mine.yaml", yaml.safe_dump(plain))


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12) | st.sampled_from(NASTY)
TEXT |= st.text(st.sampled_from("'\"\\,#[]{}$ =:~!ü\n\tae1"), max_size=8)


@given(text=TEXT, other=TEXT)
@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_study_types_for_a_run_is_the_run(text: str, other: str, tmp_path: Path) -> None:
    """From the words of a row through YAML, the command line of a process, and quotes around several runs of one."""
    assume("${" not in text + other)
    words = (f"model.revision={text}", f"tracking.group={other}", f"sampler.servers=['x', {other}]")
    (unit,) = make_plan(parse_study(study_of(tmp_path, words)), "laptop", store=tmp_path)
    config = unit.config
    if text.lower() != "null" and text.strip()[:1] not in ("'", '"'):
        assert config.model.revision == text
    with caller():
        say(trusts=True)  # the servers
        _, name, *arguments = command(unit)[len(interpreter.command()) + 1 :]
        typed = unit.as_typed()
    train = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    given_words = train.make_context(name, arguments).params["overrides"]
    assert compose_run(given_words, tmp_path) == config
    assert compose_one(shlex.join(["train", *typed, f"store={tmp_path}"]), None) == (Run(config), True)
