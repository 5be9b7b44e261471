"""Work of `tepo chat`: questions from a terminal or a pipe, each answered by one response. Imports torch."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tepo.common.errors import UserError
from tepo.common.randomness import derive
from tepo.common.text import counted
from tepo.config.own_reward import PLACE
from tepo.jobs.open_sampler import model_sampler
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import AskedPrompts, encode_prompts
from tepo.reporting.progress import say
from tepo.sampling.backends import SamplerOptions
from tepo.sampling.embedded.decoder import longest
from tepo.sampling.sampler import Sampler, SamplingParams, response_texts
from tepo.sampling.served import ServedModel
from tepo_cli.show_scores import Target

_HALF = "\ufffd"  # of a character, whose other tokens are to come


@dataclass(frozen=True)
class Manner:
    """How a model is asked; None: as its run was trained."""

    raw: bool
    temperature: float | None
    max_new_tokens: int | None
    seed: int

    def of(self, target: Target, model: str) -> tuple[dict[str, Any], SamplingParams]:
        """The prompt around a question, as `encode_prompts` takes it, and how a response is drawn."""
        config = target.run.config()["full"] if target.run.config_file.is_file() else {}
        default_prompt = "raw" if model.startswith("package:") else PLACE
        form = {
            "prompt": config.get("data", {}).get("prompt", default_prompt),
            "wrap": target.wrap,
            "thinking": target.thinking,
        }
        train, temperature, limit = config.get("train", {}), self.temperature, self.max_new_tokens
        params = SamplingParams(
            n=1,
            temperature=train.get("temperature", 1.0) if temperature is None else temperature,
            max_new_tokens=limit or train.get("max_new_tokens", 1024),
        )
        return {"prompt": "raw"} if self.raw else form, params


@dataclass
class Conversation:
    """Questions to one model, and its responses. form, params: see `Manner.of`. room: tokens that a prompt and its
    response may have. rows: of the vocabulary. system: what the system says before them. before: the turns so far."""

    sampler: Sampler
    tokenizer: Any
    form: dict[str, Any]
    params: SamplingParams
    seed: int
    room: int
    rows: int
    system: str = ""
    before: list[tuple[str, str]] = field(default_factory=list)
    asked: int = 0

    def ask(self, question: str) -> AskedPrompts:
        """Raises UserError for what training would refuse as a problem."""
        problem = Problem(f"question {self.asked}", question, "", system=self.system)
        prompts = encode_prompts([problem], self.tokenizer, **self.form, before=self.before)
        prompts.check_rows(self.rows, str(self.tokenizer.name_or_path))
        return prompts

    def answer(self, question: str, *, keep: bool) -> None:
        """Print the response, as it comes where the sampler lets it be watched, and its length. keep: as a turn, which
        the questions after it follow. The first turns are left out when there is no more room for them."""
        self.asked += 1
        prompts = self.ask(question)
        while self.before and len(prompts.tokens[0]) + self.params.max_new_tokens > self.room:
            del self.before[0]
            prompts = self.ask(question)
        if (free_tokens := self.room - len(prompts.tokens[0])) < 1:
            raise UserError(f"it has {counted(len(prompts.tokens[0]), 'token')}, and there is room for {self.room:,}")
        params = replace(self.params, max_new_tokens=min(self.params.max_new_tokens, free_tokens), stop=prompts.stop)
        tokens, printed_text = list[int](), ""

        def show(text: str) -> None:
            nonlocal printed_text
            if text.startswith(printed_text):
                print(text[len(printed_text) :], end="", flush=True)
                printed_text = text

        def watch(new: list[int]) -> None:
            """Show what came before this token, which may be the end."""
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            tokens.extend(new)
            if not text.endswith(_HALF):
                show(text)

        self.sampler.watch = watch
        key = derive(self.seed, "chat", self.asked)
        ((response,),) = self.sampler.sample(prompts.tokens, [key], params)
        (text,) = response_texts([response], self.tokenizer)
        show(text)
        print(flush=True)
        say(f"({counted(len(response.tokens), 'token')}{'' if response.finished else ', cut off at the limit'})")
        if keep:
            self.before.append((question, text))


def converse(target: Target, model: str, manner: Manner, backend: str) -> None:
    """Answer the questions of standard input until it ends. model: the word for it. Raises UserError for a model that
    cannot be opened or asked; of a question that cannot be asked the reason is printed."""
    if isinstance(target.weights, ServedModel):
        what = "tepo chat loads the weights of a model, and a served one only answers requests"
        fix = "a client of its server, such as `vllm chat`; `tepo eval` measures it where it is"
        raise UserError(what, where=model, fix=fix)
    sizes, options = target.weights.sizes(), SamplerOptions(backend, max_rows=1)
    room, rows = min(longest(sizes), options.max_length), int(sizes.get_text_config().vocab_size)
    form, params = manner.of(target, model)
    typed = sys.stdin.isatty() and sys.stdout.isatty()
    with model_sampler(target.weights, replace(options, max_length=room), target.run) as (sampler, tokenizer):
        system = "" if manner.raw else target.system
        talk = Conversation(sampler, tokenizer, form, params, manner.seed, room, rows, system)
        turns = talk.ask("1").turns and typed
        say(f"{target.weights.path}{'' if turns else ': each question is asked alone'}")
        for question in _typed() if typed else _piped():
            try:
                talk.answer(question, keep=turns)
            except KeyboardInterrupt:
                if not typed:
                    raise
                print()
            except UserError as error:
                if error.exit_code != 2:  # the model is broken, not the question
                    raise
                say(f"not asked: {error.what}")


def _typed() -> Iterator[str]:
    """Lines of a terminal, until Ctrl-D or Ctrl-C where a question would be."""
    import readline  # noqa: F401 `input` has its keys

    try:
        while True:
            if (question := input("> ")).strip():
                yield question
    except (EOFError, KeyboardInterrupt):
        print()


def _piped() -> Iterator[str]:
    """Lines of a pipe or a file."""
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    yield from (question for line in sys.stdin if (question := line.rstrip("\r\n")).strip())
