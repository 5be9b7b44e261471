import json
from pathlib import Path

import pytest

from tepo.common.errors import RunFailed
from tepo.config.compose import compose
from tepo.problems.problem import Problem
from tepo.store.run_folder import RunFolder
from tepo.training.rollout.prompt_stream import PromptStream, keep_first_prompt, show_first_prompt
from tests.unit.problems.chats import FAMILIES

ESCAPE = "red \x1b[31m\u202e here\n1+1?"


def stream(*statements: str, prompt: str = "{problem}") -> PromptStream:
    config = compose(["model=some/one", "data.kind=problems", "data.problems=x.jsonl", f"data.prompt='{prompt}'"])
    problems = [Problem(f"p{number}\x1b", statement, "1") for number, statement in enumerate(statements)]
    return PromptStream(config, FAMILIES["base asked by ChatML"]()[0], problems)


def test_it_is_shown_with_its_control_tokens_and_without_escapes() -> None:
    shown = show_first_prompt(stream(ESCAPE))
    head, *lines = shown.split("\n")
    assert head == "first prompt (p0\\x1b), 60 tokens, control tokens in « »:"
    assert lines == [
        *("| «<|im_start|>»system", "| Be brief.«<|im_end|>»", "| «<|im_start|>»user"),
        *("| red \\x1b[31m\\u202e here", "| 1+1?«<|im_end|>»", "| «<|im_start|>»assistant", "| "),
    ]


def test_it_is_stored_and_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, asked = RunFolder(tmp_path), stream(ESCAPE)
    keep_first_prompt(asked, run)
    assert capsys.readouterr().err == show_first_prompt(asked) + "\n"
    text = run.prompt_file.read_text()
    kept = json.loads(text)
    assert (kept["tokens"], kept["stop"]) == (asked.take(0, 1)[0].tokens, list(asked.stop))
    assert not {"\x1b", "\u202e"} & set(text)
    keep_first_prompt(stream(ESCAPE), run)
    assert (capsys.readouterr().err, run.prompt_file.read_text()) == ("", text)
    for other in ("{}", "[]", "", json.dumps({**kept, "stop": []}), json.dumps({**kept, "tokens": [1]})):
        run.prompt_file.write_text(other)
        with pytest.raises(RunFailed, match="another one than when the run began"):
            keep_first_prompt(stream(ESCAPE), run)
