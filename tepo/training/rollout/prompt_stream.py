"""The endless stream of training prompts: number i is a function of (configuration, seed, i) alone."""

from collections.abc import Sequence
from random import Random

import numpy as np
from transformers import PreTrainedTokenizerBase

from tepo.common.errors import UserError
from tepo.common.randomness import derive
from tepo.config.run_config import RunConfig
from tepo.problems.problem import Problem
from tepo.problems.prompt_format import encode_prompts
from tepo.training.batch import Prompt

# Procedural problems, which are made before the first step, in about 8 seconds; beyond them the stream starts over.
_MOST_MADE = 100_000


class PromptStream:
    """Problems tokenised once, then served in an order drawn anew for each pass."""

    def __init__(self, config: RunConfig, tokenizer: PreTrainedTokenizerBase):
        self.seed = config.seed
        self.tokenizer = tokenizer
        self.fresh = config.data.kind == "procedural"
        problems = _problems(config)
        check_letters(problems, tokenizer)
        limit, self.new_tokens = config.train.max_prompt_tokens, config.train.max_new_tokens
        tokens = encode_prompts(
            [problem.prompt for problem in problems],
            tokenizer,
            prompt=config.data.prompt,
            wrap=config.model.wrap,
            thinking=config.model.thinking,
        )
        self.overlong = sum(len(ids) > limit for ids in tokens)
        if self.overlong and config.data.overlong_prompts == "error":
            raise UserError(
                f"{self.overlong} of {len(problems)} prompts are longer than {limit} tokens",
                where=f"data={config.data.name}, data.prompt={config.data.prompt}",
                fix=f"train.max_prompt_tokens={max(map(len, tokens))}, or data.overlong_prompts=drop or truncate",
            )
        if config.data.overlong_prompts == "truncate":  # keeps the end, as the paper's code base does (A11)
            tokens = [ids[-limit:] for ids in tokens]
        self.items = [(problem, ids) for problem, ids in zip(problems, tokens, strict=True) if len(ids) <= limit]
        if not self.items:
            raise UserError(
                "no training prompt is short enough",
                where=f"train.max_prompt_tokens={limit}",
                fix=f"raise it: the shortest has {min(map(len, tokens))}",
            )

    def check_positions(self, positions: int) -> None:
        """Raise UserError when the longest prompt and a response of full length exceed the model's positions:
        the sampler would stop the run at the first step that draws such a prompt."""
        longest = max(len(ids) for _, ids in self.items)
        if longest + self.new_tokens > positions:
            raise UserError(
                f"the longest prompt has {longest} tokens, a response up to {self.new_tokens}, and the model has "
                f"{positions:,} positions",
                where=str(self.tokenizer.name_or_path),
                fix=f"train.max_new_tokens={positions - longest}, or a lower train.max_prompt_tokens",
            )

    def take(self, start: int, count: int) -> list[Prompt]:
        """Prompts number start … start + count - 1."""
        return [Prompt(number, *self.items[self._place(number)]) for number in range(start, start + count)]

    def first(self, count: int) -> list[list[int]]:
        """The tokens of the first prompts."""
        return [prompt.tokens for prompt in self.take(0, count)]

    def decode(self, tokens: Sequence[np.ndarray]) -> list[str]:
        """Response texts without special tokens."""
        return self.tokenizer.batch_decode([ids.tolist() for ids in tokens], skip_special_tokens=True)

    def _place(self, number: int) -> int:
        size = len(self.items)
        if self.fresh:  # procedural problems come in random order already
            return number % size
        return self._order(number // size)[number % size]

    def _order(self, epoch: int) -> Sequence[int]:
        cached: tuple[int, list[int]] = getattr(self, "_cached", (-1, []))
        if cached[0] != epoch:
            order = list(range(len(self.items)))
            Random(derive(self.seed, "prompt order", epoch)).shuffle(order)
            self._cached = cached = (epoch, order)
        return cached[1]


def check_letters(problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError when the tokenizer drops letters or digits of the statements:
    the policy would be asked something else.

    Only ASCII is looked at, and case is not, because some tokenizers normalise the rest."""
    used = {
        character for problem in problems for character in problem.prompt if character.isascii() and character.isalnum()
    }
    held = {
        character: str(tokenizer.decode(tokenizer(character, add_special_tokens=False)["input_ids"]))
        for character in sorted(used)
    }
    lost = [character for character, text in held.items() if character.casefold() not in text.casefold()]
    if lost:
        raise UserError(
            f"the model's tokenizer has no {', '.join(lost[:12])}{' …' if len(lost) > 12 else ''}, "
            "which the problems use",
            where=str(tokenizer.name_or_path),
            fix="another model (model=FOLDER); the shipped ones read digits and arithmetic alone (docs/scales.md)",
        )


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
