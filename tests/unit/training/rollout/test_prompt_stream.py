import json
from pathlib import Path

import pytest

from tepo.common.errors import RunFailed
from tepo.config.compose import compose
from tepo.policy.model.load_policy import load_tokenizer
from tepo.problems.problem import Problem
from tepo.store.run_folder import RunFolder
from tepo.training.rollout import prompt_stream
from tepo.training.rollout.prompt_stream import PromptStream, keep_first_prompt, show_first_prompt
from tests.support.runs import small
from tests.unit.problems.chats import FAMILIES

ESCAPE = "red \x1b[31m\u202e here\n1+1?"


def stream() -> PromptStream:
    config = compose(["model=some/one", "data.kind=problems", "data.problems=x.jsonl", "data.prompt='{problem}'"])
    return PromptStream(config, FAMILIES["base asked by ChatML"]()[0], [Problem("p0\x1b", ESCAPE, "1")])


def test_it_is_shown_with_its_control_tokens_and_without_escapes() -> None:
    shown = show_first_prompt(stream())
    assert "p0\\x1b" in shown
    assert "«<|im_start|>»user\n| red \\x1b[31m\\u202e here\n| 1+1?«<|im_end|>»" in shown


def test_it_is_stored_and_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, asked = RunFolder(tmp_path), stream()
    keep_first_prompt(asked, run)
    assert capsys.readouterr().err == show_first_prompt(asked) + "\n"
    text = run.prompt_file.read_text()
    kept = json.loads(text)
    assert (kept["tokens"], kept["stop"]) == (asked.take(0, 1)[0].tokens, list(asked.stop))
    assert not {"\x1b", "\u202e"} & set(text)
    keep_first_prompt(stream(), run)
    assert (capsys.readouterr().err, run.prompt_file.read_text()) == ("", text)
    for other in ("{}", "[]", "", json.dumps({**kept, "stop": []}), json.dumps({**kept, "tokens": [1]})):
        run.prompt_file.write_text(other)
        with pytest.raises(RunFailed, match="another one than when the run began"):
            keep_first_prompt(stream(), run)


def test_a_run_that_may_draw_for_ever_makes_its_problems_in_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_stream, "_MOST_MADE", 50)
    tokenizer = load_tokenizer("package:laptop")
    stream = PromptStream(small(tmp_path, "train.max_rounds=1000"), tokenizer)
    first, *_, last = stream.take(0, 51)
    assert (last.number, last.problem) == (50, first.problem)
    whole = PromptStream(small(tmp_path), tokenizer)  # 3 steps x 8 prompts x 2 rounds: the same as far as it goes
    assert [prompt.problem for prompt in whole.take(0, 48)] == [prompt.problem for prompt in stream.take(0, 48)]
