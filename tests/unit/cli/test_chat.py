from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.policy.model.load_policy import Policy, load_policy
from tepo.sampling.embedded.torch_sampler import TorchSampler
from tepo.sampling.sampler import SamplingParams, response_texts
from tepo.store.run_folder import RunFolder
from tepo.training.loop import train
from tepo.training.run import Run
from tepo_cli.conversation import Conversation
from tepo_cli.main import app
from tests.integration.own_model import save_family
from tests.support.commands import Terminal
from tests.support.runs import small

ALONE = "each question is asked alone"


def chat(*words: str | Path, lines: str) -> Result:
    return CliRunner().invoke(app, ["chat", *map(str, words)], input=lines)


def greedy(model: str, prompt: str, limit: int = 40) -> str:
    policy = load_policy(model)
    sampler = TorchSampler(policy.model, policy.tokenizer)
    params = SamplingParams(n=1, temperature=0.0, max_new_tokens=limit)
    ((response,),) = sampler.sample([policy.tokenizer(prompt)["input_ids"]], [0], params)
    return response_texts([response], policy.tokenizer)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Trained with a prompt of its own around each problem."""
    words = ("data.prompt='0+{problem}'", "model.wrap=raw", "train.steps=1")
    return RunFolder(train(Run(small(tmp_path_factory.mktemp("runs"), *words))))


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template, and room for 256 tokens."""
    folder = tmp_path_factory.mktemp("talker")
    save_family(folder, "qwen2", chat=True)
    return folder


def test_each_line_of_a_pipe_gets_a_response_on_standard_output_alone() -> None:
    done = chat("package:laptop", "--temperature", "0", lines="347+285=\n\n   \nwhy?\n<eos>1\n12*3=\r\n")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [greedy("package:laptop", asked) for asked in ("347+285=", "12*3=")]
    first, *rest = done.stderr.splitlines()
    assert first == f"package:laptop: {ALONE}"
    assert [line.partition(":")[0] for line in rest] == ["(30 tokens)", "not asked", "not asked", "(21 tokens)"]
    assert "the model's tokenizer has no ?, h, w, y, which the prompts use" in done.stderr
    assert "1 statement with control tokens of the model: question 3 (<eos>)" in done.stderr


def test_a_run_is_asked_as_it_was_trained(run: RunFolder) -> None:
    weights = str(run.checkpoint(1))
    for named in ((run.path,), (run.path.name[:6], "--store", run.path.parent)):
        done = chat(*named, "--temperature", "0", lines="347+285=\n")
        assert done.stdout == greedy(weights, "0+347+285=") + "\n"
    raw = chat(run.path, "--raw", "--temperature", "0", lines="347+285=\n")
    assert raw.stdout == greedy(weights, "347+285=") + "\n" != done.stdout
    cut = chat(run.path, "--max-new-tokens", "3", lines="347+285=\n")
    assert "(3 tokens, cut off at the limit)" in cut.stderr
    short = chat(run.path, lines="347+285=\n" * 9)  # at most the 40 tokens of its training
    assert max(int(line[1:].split()[0]) for line in short.stderr.splitlines() if line.startswith("(")) <= 40


def test_a_seed_repeats_a_conversation() -> None:
    first, again, other = (
        chat("package:laptop", "--seed", seed, lines="347*285=\n" * 3).stdout for seed in ("1", "1", "2")
    )
    assert first == again != other
    assert len(set(first.splitlines())) > 1  # a question that comes again has a draw of its own


def test_a_model_that_cannot_be_asked_is_one_message(tmp_path: Path) -> None:
    done = chat("no_such_model_here/", "--store", tmp_path, lines="1+1=\n")
    assert isinstance(done.exception, UserError)
    assert "no model and no run" in str(done.exception)
    assert (done.exception.exit_code, done.stdout) == (2, "")


def conversation(talker: Path, room: int) -> tuple[Conversation, Policy]:
    policy = load_policy(str(talker))
    form: dict[str, Any] = {"prompt": "{problem}", "wrap": "auto", "thinking": None}
    params = SamplingParams(n=1, temperature=0.0, max_new_tokens=12)
    sampler, rows = TorchSampler(policy.model, policy.tokenizer), policy.model.config.vocab_size
    return Conversation(sampler, policy.tokenizer, form, params, 0, room, rows), policy


def test_turns_follow_each_other_as_the_template_writes_them(talker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk, policy = conversation(talker, room=256)
    said = list[str]()
    for question in ("Ann?", "Ben?"):
        talk.answer(question, keep=True)
        said.append(capsys.readouterr().out.removesuffix("\n"))
    assert said[0].startswith("\\boxed{")
    (tokens,) = talk.ask("Cleo?").tokens
    turns = [("user", "Ann?"), ("assistant", said[0]), ("user", "Ben?"), ("assistant", said[1]), ("user", "Cleo?")]
    text = "".join(f"<|im_start|>{who}\n{what}<|im_end|>\n" for who, what in turns) + "<|im_start|>assistant\n"
    assert policy.tokenizer.decode(tokens) == text
    with pytest.raises(UserError, match=r"control tokens of the model: question 2 \(<\|im_end\|>\)"):
        talk.ask("<|im_end|>")


def test_the_first_turns_make_room(talker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk, _ = conversation(talker, room=0)
    talk.room = len(talk.ask("Ann?").tokens[0]) + 40
    for number in range(4):
        talk.answer("Ann?", keep=True)
        assert len(talk.ask("Ann?").tokens[0]) > talk.room - 12 or number < 2
    assert 0 < len(talk.before) < 4
    talk.room = 5
    with pytest.raises(UserError, match=r"tokens, and there is room for 5"):
        talk.answer("Ann?", keep=True)
    assert capsys.readouterr().out.count("boxed") == 4


@pytest.mark.parametrize("last", ["\x04", "\x03"], ids=["Ctrl-D", "Ctrl-C"])
def test_in_a_terminal(talker: Path, last: str) -> None:
    terminal = Terminal("chat", talker, "--max-new-tokens", "12")
    assert ALONE not in terminal.wait_for("> ")
    terminal.type("Ann?\n")
    assert "\\boxed{" in terminal.wait_for("> ").partition("Ann?")[2]
    terminal.type("\n<eos>\n")
    terminal.wait_for("not asked: 1 statement with control tokens")
    terminal.wait_for("> ")
    assert terminal.leave(last) == 0
