"""The endless stream of training prompts: number i is a function of (configuration, seed, i) alone."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from tepo.common.errors import UserError
from tepo.common.randomness import derive
from tepo.config.run_config import RunConfig
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import PROMPTS, encode_prompts, render_prompt
from tepo.training.rollout_batch import Prompt

# Procedural problems, which are made before the first step, in about 8 seconds; beyond them the stream starts over.
_MOST_MADE = 100_000


class PromptStream:
    """Problems tokenised once, then served in an order drawn anew for each pass."""

    def __init__(self, config: RunConfig, tokenizer: PreTrainedTokenizerBase):
        self.seed = config.seed
        self._shuffled: tuple[int, list[int]] = (-1, [])  # the order of a pass
        self.tokenizer = tokenizer
        self.fresh = config.data.kind == "procedural"
        problems = _problems(config)
        form: Any = {"prompt": config.data.prompt, "wrap": config.model.wrap, "thinking": config.model.thinking}
        own = config.data.prompt not in PROMPTS
        check_letters(problems, tokenizer, render_prompt("", tokenizer, **form) if own else "")
        limit, self.new_tokens = config.train.max_prompt_tokens, config.train.max_new_tokens
        tokens = encode_prompts([problem.prompt for problem in problems], tokenizer, **form)
        self.overlong = sum(len(ids) > limit for ids in tokens)
        if self.overlong and config.data.overlong_prompts == "error":
            what = f"{self.overlong} of {len(problems)} prompts are longer than {limit} tokens"
            where = f"data={config.data.name}, data.prompt={'your own' if own else config.data.prompt}"
            fix = f"train.max_prompt_tokens={max(map(len, tokens))}, or data.overlong_prompts=drop or truncate"
            raise UserError(what, where=where, fix=fix)
        if config.data.overlong_prompts == "truncate":  # keeps the end, as the paper's code base does (A11)
            tokens = [ids[-limit:] for ids in tokens]
        self.items = [(problem, ids) for problem, ids in zip(problems, tokens, strict=True) if len(ids) <= limit]
        if not self.items:
            where, fix = f"train.max_prompt_tokens={limit}", f"raise it: the shortest has {min(map(len, tokens))}"
            raise UserError("no training prompt is short enough", where=where, fix=fix)

    def check_positions(self, positions: int) -> None:
        """Raise UserError when the longest prompt and a response of full length exceed the model's positions:
        the sampler would stop the run at the first step that draws such a prompt."""
        longest = max(len(ids) for _, ids in self.items)
        if longest + self.new_tokens > positions:
            what = f"the longest prompt has {longest} tokens, a response up to {self.new_tokens}, and the model has "
            left = positions - longest
            fix = (f"train.max_new_tokens={left}, or " if left > 0 else "") + "a lower train.max_prompt_tokens"
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

    def decode(self, tokens: Sequence[np.ndarray]) -> list[str]:
        """Response texts without special tokens."""
        return self.tokenizer.batch_decode([ids.tolist() for ids in tokens], skip_special_tokens=True)

    def _order(self, epoch: int) -> Sequence[int]:
        if self._shuffled[0] != epoch:
            order = list(range(len(self.items)))
            Random(derive(self.seed, "prompt order", epoch)).shuffle(order)
            self._shuffled = epoch, order
        return self._shuffled[1]


def check_letters(problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, prompt: str = "") -> None:
    """Raise UserError when the tokenizer drops letters or digits of the statements, or of a prompt of the user's own
    around them: the policy would be asked something else.

    Only ASCII is looked at, and case is not, because some tokenizers normalise the rest."""
    every = {character for problem in problems for character in problem.prompt} | set(prompt)
    used = {character for character in every if character.isascii() and character.isalnum()}
    held = {
        character: str(tokenizer.decode(tokenizer(character, add_special_tokens=False)["input_ids"]))
        for character in sorted(used)
    }
    lost = [character for character, text in held.items() if character.casefold() not in text.casefold()]
    if lost:
        some = f"{', '.join(lost[:12])}{' …' if len(lost) > 12 else ''}"
        what, where = f"the model's tokenizer has no {some}, which the prompts use", str(tokenizer.name_or_path)
        fix = "another model (model=FOLDER); the shipped ones read digits and arithmetic alone (docs/scales.md)"
        raise UserError(what, where=where, fix=fix)


def _problems(config: RunConfig) -> list[Problem]:
    data, train = config.data, config.train
    if data.kind == "procedural":
        from tepo.problems.procedural.generator import generate

        most = min(train.steps * train.prompts_per_step * train.max_rounds, _MOST_MADE)
        return generate(data.tasks, most, derive(config.seed, "train problems"), "train")
    from tepo.problems.training_sets import load_training_problems, split_off

    assert data.problems
    loaded = load_training_problems(data.problems, exclude_contaminated=data.exclude_contaminated)
    return split_off(loaded, data.held_out, data.problems)[0]
