"""Base models by recipe (`tepo.policy.recipes`): tokenizer and model of one, its batches, its training, its folder."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from tepo.common.files import commit_folder, write_json
from tepo.common.randomness import derive
from tepo.policy.model.allocator import give_back
from tepo.policy.model.load_policy import load_policy
from tepo.policy.model.lora import add_adapters, rescale, unload
from tepo.policy.model.model_location import WEIGHTS
from tepo.policy.model.weight_check import check_finite
from tepo.policy.recipes import TRAINED_SCALE, Phase, Recipe
from tepo.problems.procedural.generator import Example, generate_examples
from tepo.problems.prompt_format import encode_prompts

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
BOX_OPEN, BOX_CLOSE = "\\boxed{", "}"
CHARACTERS = "0123456789+-*/%=,;:() acdgilmnorstux"
VOCABULARY = (*SPECIAL, BOX_OPEN, BOX_CLOSE, *CHARACTERS)


def build_tokenizer(max_length: int) -> Qwen2Tokenizer:
    """The character tokenizer for models of `max_length` positions: 42 tokens, `\\boxed{` and `}` single ones.

    A byte-level BPE without merges, which is what Qwen2's own class makes of a tiny vocabulary: `AutoTokenizer` picks
    that class for every model of the architecture, whatever the files say. Nothing is added around a text: a prompt
    goes to the model as it is, and a response ends with `<eos>`. Characters outside the vocabulary are dropped.
    """
    spelled = {" ": "Ġ"}  # byte-level spelling; all other characters are their own byte
    tokenizer = Qwen2Tokenizer(
        vocab={spelled.get(token, token): index for index, token in enumerate(VOCABULARY)},
        merges=[],
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
        padding_side="left",
    )
    tokenizer.add_tokens([AddedToken(BOX_OPEN, normalized=False)])
    return tokenizer


_IGNORED = -100  # the label cross_entropy leaves out


def build_model(recipe: Recipe, tokenizer: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """The untrained model, float32, one key-value head, tied embeddings;
    its weights are a function of the recipe's seed."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.feed_forward,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=1,
        max_position_embeddings=recipe.max_length,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Qwen2ForCausalLM(config)


def start(recipe: Recipe) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of a recipe before its first step, float32, and its tokenizer."""
    if not recipe.model:
        tokenizer = build_tokenizer(recipe.max_length)
        return build_model(recipe, tokenizer), tokenizer
    policy = load_policy(recipe.model, dtype="bfloat16" if recipe.rank else "float32")
    if recipe.rank:
        add_adapters(policy.model, recipe.rank, TRAINED_SCALE * recipe.rank, recipe.seed)
        for parameter in filter(lambda parameter: parameter.requires_grad, policy.model.parameters()):
            parameter.data = parameter.data.float()
    return policy.model, policy.tokenizer


def response_text(example: Example, phase: Phase, random: Random) -> str:
    """The text the model learns to answer with: a chain, whole, terse, reworded or with slips, or a bare answer."""
    if random.random() < phase.guesses:
        return example.guess()
    if phase.wordings:
        return example.wording(random)
    if phase.skip:
        return example.terse(random, phase.skip)
    slip = phase.slip or (phase.chain_slip and 1 - (1 - phase.chain_slip) ** (1 / example.results()))
    if slip:
        return example.solution(
            lambda value, wrong: random.choice(wrong) if wrong and random.random() < slip else value
        )
    return example.solution()


def make_batch(recipe: Recipe, step: int, tokenizer: PreTrainedTokenizerBase) -> list[tuple[Tensor, Tensor]]:
    """Token ids and labels [rows, T] of one step, padded on the right; labels are ids where a response token stands.
    A pretrained model is asked through its chat template.

    The batch comes as a shorter and a longer half, which halves the padding (a fifth less time); that of a pretrained
    model in four parts, for its memory.
    """
    phase = recipe.phase(step)
    examples = generate_examples(recipe.tasks, recipe.batch, derive(recipe.seed, "warmstart", step), "train")
    texts = [
        response_text(example, phase, Random(derive(recipe.seed, "warmstart response", step, row)))
        for row, example in enumerate(examples)
    ]
    encoded_prompts = encode_prompts(
        [example.problem for example in examples], tokenizer, prompt="boxed" if recipe.model else "raw"
    )
    prompts, (end, *_) = encoded_prompts.tokens, (*encoded_prompts.stop, tokenizer.eos_token_id)
    responses = [[*ids, end] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    rows = sorted(zip(prompts, responses, strict=True), key=lambda row: len(row[0]) + len(row[1]))
    size = math.ceil(len(rows) / (4 if recipe.model else 2))
    return [_pad(rows[at : at + size], int(tokenizer.pad_token_id)) for at in range(0, len(rows), size)]


def _pad(rows: Sequence[tuple[list[int], list[int]]], pad: int) -> tuple[Tensor, Tensor]:
    width = max(len(prompt) + len(response) for prompt, response in rows)
    ids = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), _IGNORED)
    for row, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        ids[row, :end] = torch.tensor(prompt + response)
        labels[row, len(prompt) : end] = torch.tensor(response)
    return ids, labels


def _loss_sum(model: PreTrainedModel, ids: Tensor, labels: Tensor, sparse: bool) -> Tensor:
    """Cross-entropy in nats, summed over the response tokens. sparse: a large head is multiplied for these alone, in
    another order of sums."""
    hidden, targets = model.base_model(input_ids=ids, use_cache=False).last_hidden_state, labels[:, 1:]
    head, response_mask = model.get_output_embeddings(), targets != _IGNORED
    logits = head(hidden[:, :-1][response_mask]) if sparse else head(hidden)[:, :-1].flatten(0, 1)
    targets = targets[response_mask] if sparse else targets.flatten()
    return cross_entropy(logits.float(), targets, ignore_index=_IGNORED, reduction="sum")


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then linear decay to zero."""
    rise = (step + 1) / recipe.warmup_steps if recipe.warmup_steps else 1.0
    return recipe.learning_rate * min(rise, 1.0) * (1 - step / recipe.steps)


def train(
    recipe: Recipe, report: Callable[[int, float], Any] = lambda step, loss: None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
    """Run the recipe on one thread. `report(step, loss)` follows each step (loss: nats per response token). Returns the
    model, its tokenizer, and a record: settings, losses (mean of each tenth of the steps), CPU seconds, tokens."""
    model, tokenizer = start(recipe)
    pretrained = bool(recipe.model)
    model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
    )
    losses, tokens, begun = [], 0, time.process_time()
    for step in range(recipe.steps):
        parts = make_batch(recipe, step, tokenizer)
        targets = sum(int((labels != _IGNORED).sum()) for _, labels in parts)
        optimizer.zero_grad()
        loss = 0.0
        for ids, labels in parts:
            with torch.autocast("cpu", torch.bfloat16, enabled=pretrained):
                part_loss = _loss_sum(model, ids, labels, pretrained) / targets
            part_loss.backward()
            if pretrained:
                give_back()
            loss += part_loss.item()
            tokens += int(((ids != tokenizer.pad_token_id) | (labels != _IGNORED)).sum())
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(recipe, step)
        optimizer.step()
        losses.append(loss)
        report(step, loss)
    tenth = max(1, recipe.steps // 10)
    means = [sum(part) / len(part) for part in (losses[i : i + tenth] for i in range(0, recipe.steps, tenth))]
    record = {"recipe": asdict(recipe), "losses": means, "cpu_seconds": time.process_time() - begun, "tokens": tokens}
    if recipe.rank:
        rescale(model, recipe.scale)
    return (model if not pretrained or recipe.rank else model.bfloat16()).eval(), tokenizer, record


def save_base(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, record: Mapping[str, Any]
) -> None:
    """Write a base model in Hugging Face format, with `recipe.json` beside it; an existing folder is replaced whole. An
    adapter is merged, and lies in `adapter/` too. Raises UserError for weights that are not finite."""
    check_finite(model.state_dict(), str(folder))
    adapter = unload(model)
    with commit_folder(folder) as scratch:
        if adapter:
            (scratch / "adapter").mkdir()
            save_file(adapter, scratch / "adapter" / WEIGHTS)
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        write_json(scratch / "recipe.json", dict(record))
