import shlex
from pathlib import Path

import pytest
import typer
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tepo.common import interpreter
from tepo.common.errors import UserError
from tepo.common.trust import caller, say
from tepo.config.compose import compose
from tepo.launch.local import command
from tepo.studies.plan import make_plan
from tepo.studies.study import parse_study
from tepo.training.run import Run
from tepo_cli.cli_options import compose_run
from tepo_cli.main import app
from tepo_cli.train_run import compose_one
from tests.support.runs import write

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


def study(folder: Path, words: tuple[str, ...]) -> Path:
    rows = [{"label": "GRPO", "objective": "grpo", "overrides": list(words)}]
    plain = {"title": "", "rows": rows, "scales": {"laptop": {"models": ["laptop"], "seeds": [0]}}}
    return write(folder / "mine.yaml", yaml.safe_dump(plain))


TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12) | st.sampled_from(NASTY)
TEXT |= st.text(st.sampled_from("'\"\\,#[]{}$ =:~!ü\n\tae1"), max_size=8)


@given(text=TEXT, other=TEXT)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_study_types_for_a_run_is_the_run(text: str, other: str, tmp_path: Path) -> None:
    """From the words of a row through YAML, the command line of a process, and quotes around several runs of one."""
    assume("${" not in text + other)
    words = (f"model.revision={text}", f"tracking.group={other}", f"sampler.servers=['x', {other}]")
    (unit,) = make_plan(parse_study(study(tmp_path, words)), "laptop", store=tmp_path)
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
