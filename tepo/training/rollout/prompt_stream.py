"""The endless stream of training prompts: number i is a function of (configuration, seed, i) alone."""

import sys
from collections.abc import Sequence
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase

from tepo.common.errors import RunFailed, UserError
from tepo.common.files import parse_json, write_json
from tepo.common.randomness import derive
from tepo.common.text import counted, spelt
from tepo.config.run_config import RunConfig
from tepo.policy.model.shapes import positions_of
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import PROMPTS, encode_prompts
from tepo.problems.prompts.control_tokens import listed, marked
from tepo.problems.training_sets import load_training_problems, split_off, system_of
from tepo.sampling.sampler import Response, response_texts
from tepo.store.run_folder import RunFolder
from tepo.training.rollout_batch import Prompt

# Procedural problems, which are made before the first step, in about 8 seconds; beyond them the stream starts over.
_MOST_MADE = 100_000


class PromptStream:
    """Problems tokenised once, then served in an order drawn anew for each pass. problems: where they are loaded
    already. stop: ids that end the turn that a chat template opened."""

    def __init__(
        self, config: RunConfig, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem] | None = None
    ):
        self.seed = config.seed
        self._shuffled: tuple[int, list[int]] = (-1, [])  # the order of a pass
        self.tokenizer = tokenizer
        self.fresh = config.data.kind == "procedural"
        self.system = system_of(config.data)  # that benchmarks are asked with, too
        problems = training_problems(config) if problems is None else problems
        form: Any = {"prompt": config.data.prompt, "wrap": config.model.wrap, "thinking": config.model.thinking}
        limit, self.new_tokens = config.train.max_prompt_tokens, config.train.max_new_tokens
        self.asked = encode_prompts(problems, tokenizer, **form)
        tokens, self.stop = self.asked.tokens, self.asked.stop
        self.overlong = sum(len(ids) > limit for ids in tokens)

        def fits(prompt: int) -> bool:
            """Whether the model takes a prompt of so many tokens with its response, as far as is known here."""
            positions = positions_of(config.model.path)
            return positions is None or prompt + self.new_tokens <= positions

        if self.overlong and config.data.overlong_prompts == "error":
            what = f"{self.overlong} of {len(problems)} prompts are longer than {limit} tokens"
            own_prompt = config.data.prompt not in PROMPTS
            where = f"data={config.data.name}, data.prompt={'your own' if own_prompt else config.data.prompt}"
            longest, fix = max(map(len, tokens)), "data.overlong_prompts=drop or truncate"
            fix = f"train.max_prompt_tokens={longest}, or {fix}" if fits(longest) else fix
            raise UserError(what, where=where, fix=fix)
        if config.data.overlong_prompts == "truncate":  # keeps the end, as the paper's code base does (A11)
            tokens = [ids[-limit:] for ids in tokens]
        self.items = [(problem, ids) for problem, ids in zip(problems, tokens, strict=True) if len(ids) <= limit]
        if not self.items:
            shortest, fix = min(map(len, tokens)), "data.overlong_prompts=truncate"
            fix = f"raise it: the shortest has {shortest}" if fits(shortest) else fix
            where = f"train.max_prompt_tokens={limit}"
            raise UserError("no training prompt is short enough", where=where, fix=fix)

    def check_model(self, positions: int, rows: int) -> None:
        """Raise UserError when the longest prompt and a response of full length exceed the model's positions, or a
        token is no row of its vocabulary: the sampler would stop the run at the first step that draws such a prompt."""
        self.asked.check_rows(rows, str(self.tokenizer.name_or_path))
        longest = max(len(ids) for _, ids in self.items)
        if longest + self.new_tokens > positions:
            what = f"the longest prompt has {longest} tokens, a response up to {self.new_tokens}, and the model has "
            room = positions - longest
            fixes = [f"train.max_new_tokens={room}"] if room > 0 else []
            if (limit := positions - self.new_tokens) > 0:
                fixes.append(f"train.max_prompt_tokens={limit} with data.overlong_prompts=drop or truncate")
            fix = ", or ".join(fixes) or "a model with more positions"
            raise UserError(f"{what}{positions:,} positions", where=str(self.tokenizer.name_or_path), fix=fix)

    def take(self, start: int, count: int) -> list[Prompt]:
        """Prompts number start … start + count - 1."""
        prompts, size = [], len(self.items)
        for number in range(start, start + count):
            epoch, place = divmod(number, size)
            if not self.fresh:  # procedural problems come in random order already
                place = self._order(epoch)[place]
            prompts.append(Prompt(number, *self.items[place]))
        return prompts

    def first(self, count: int) -> list[list[int]]:
        """The tokens of the first prompts."""
        return [prompt.tokens for prompt in self.take(0, count)]

    def decode(self, responses: Sequence[Response]) -> list[str]:
        """See `response_texts`."""
        return response_texts(responses, self.tokenizer)

    def _order(self, epoch: int) -> Sequence[int]:
        if self._shuffled[0] != epoch:
            order = list(range(len(self.items)))
            Random(derive(self.seed, "prompt order", epoch)).shuffle(order)
            self._shuffled = epoch, order
        return self._shuffled[1]


def training_problems(config: RunConfig) -> list[Problem]:
    """The problems that a run trains on, in the order of their source."""
    data, train = config.data, config.train
    if data.kind == "procedural":
        from tepo.problems.procedural.generator import generate

        most = min(train.steps * train.prompts_per_step * train.max_rounds, _MOST_MADE)
        return generate(data.tasks, most, derive(config.seed, "train problems"), "train")
    assert data.problems
    loaded = load_training_problems(
        data.problems, exclude_contaminated=data.exclude_contaminated, fields=data.fields, columns=data.columns
    )
    return split_off(loaded, data.held_out, data.problems)[0]


def show_first_prompt(stream: PromptStream, *, tokens: bool = False) -> str:
    """Lines that begin with `| `, control tokens in « »; tokens: beneath them a line for each token with its id."""
    (first,) = stream.take(0, 1)
    arguments = first.tokens, stream.tokenizer, stream.asked.controls
    noted = ", control tokens in « »" if set(first.tokens) & stream.asked.controls.keys() else ""
    lines = [f"first prompt ({first.problem.id}), {counted(len(first.tokens), 'token')}{noted}:"]
    lines += [f"| {line}" for line in marked(*arguments).split("\n")]
    return spelt("\n".join([*lines, *(listed(*arguments) if tokens else [])]))


def keep_first_prompt(stream: PromptStream, folder: RunFolder) -> None:
    """Store and show the first prompt, once. Raises RunFailed where the run began with another one."""
    (first,), file = stream.take(0, 1), folder.prompt_file
    identity: dict[str, Any] = {"tokens": first.tokens, "stop": list(stream.stop)}
    identity |= {"system": stream.system} if stream.system else {}
    if not file.exists():
        sys.stderr.write(f"{show_first_prompt(stream)}\n")
        text = spelt(marked(first.tokens, stream.tokenizer, stream.asked.controls))
        write_json(file, {"problem": spelt(first.problem.id), "text": text, **identity})
        return
    try:
        same = identity.items() <= parse_json(file.read_bytes()).items()
    except (ValueError, AttributeError):
        same = False
    if not same:
        what = "the first prompt is another one than when the run began, or its file was changed"
        fix = "provenance.json has the versions that the run began with"
        raise RunFailed(what, where=str(file), fix=fix)
