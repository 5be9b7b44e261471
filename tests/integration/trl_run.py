"""One training of TRL's GRPOTrainer, or of ours, on the shipped laptop model with seeded sampling."""

import gc
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tepo.integrations.trl import ObjectiveTrainer

gc.freeze()  # accelerate collects garbage before each training: modules take most of that time

BASE = Path(__file__).parents[2] / "tepo" / "assets" / "laptop"
SAMPLED_OFF = 0.05  # of `sampled`'s log-probs
SHARED = ("tepo", "clip_cov")  # objectives that look at the batch of all processes
PROMPTS = ["3+4=", "12+5=", "7*2=", "40-6=", "9+9=", "5*5=", "81-3=", "2+2="]


def reward(completions: list[str], **_: Any) -> list[float]:
    """Any deterministic score that differs within groups: of few values, so that deviations are not tiny."""
    return [float(sum(map(ord, text)) % 3) for text in completions]


@dataclass
class Watch(TrainerCallback):
    """Gradients of each optimiser step, what was logged, and the losses of the micro-batches."""

    gradients: list[torch.Tensor] = field(default_factory=list)
    logs: list[dict[str, float]] = field(default_factory=list)
    trainer: Any = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> Any:
        flat = [part.grad.flatten().clone() for part in model.parameters() if part.grad is not None]
        self.gradients.append(torch.cat(flat))
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> Any:
        self.logs.append(dict(logs))
        return control


def settings(folder: Path, **changed: Any) -> GRPOConfig:
    """Two micro-batches of four completions a step, groups of four, two steps a rollout."""
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4}
    sampling = {"max_completion_length": 12, "temperature": 1.0, "top_k": 0, "num_iterations": 2}
    optimiser = {"learning_rate": 1e-4, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "max_steps": 4}
    quiet = {"report_to": "none", "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True}
    machine = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}
    options = sizes | sampling | optimiser | quiet | machine | changed
    return GRPOConfig(output_dir=str(folder), seed=1, **options)  # type: ignore[arg-type]


def train(args: GRPOConfig, objective: Any = None, **given: Any) -> tuple[Watch, GRPOTrainer]:
    """Train with TRL's own loss, or with that of an objective. The weights are in float64: AdamW enlarges the rounding
    of float32 from step to step, on some CPUs beyond what the tests allow."""
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    watch = given.pop("watch", None) or Watch()
    kind, own = (GRPOTrainer, {}) if objective is None else (ObjectiveTrainer, {"objective": objective})
    trainer = kind(
        model=given.pop("model", None) or AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float64),
        reward_funcs=given.pop("reward_funcs", reward),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=tokenizer,
        callbacks=[watch],
        **own,
        **given,
    )
    watch.trainer = trainer
    trainer.train()
    return watch, trainer


def fixed(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
    """A rollout that depends on the completion's number over all processes alone, not on seeds."""
    tokenizer, begin = trainer.processing_class, trainer.accelerator.process_index * len(prompts)
    numbers = [begin + number + 8 * trainer.state.global_step for number in range(len(prompts))]
    texts = ["".join("0123456789+="[number * step % 11] for step in range(3 + number % 5)) for number in numbers]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    asked = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    return {"prompt_ids": asked, "completion_ids": ids, "logprobs": None}


def sampled(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
    """`fixed` with log-probs of a sampler that is a little off the policy, up and down by turns."""
    made, found = fixed(prompts, trainer), []
    for prompt, completion in zip(made["prompt_ids"], made["completion_ids"], strict=True):
        with torch.no_grad():
            logits = trainer.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1)[range(len(completion)), completion]
        found.append([float(one) - SAMPLED_OFF * (place % 3 - 1) for place, one in enumerate(logprobs)])
    return made | {"logprobs": found}


def with_fixed_completions(folder: Path, objective: str, **changed: Any) -> Watch:
    """Train on completions that are the same for any number of processes. AdamW would make steps of a full learning
    rate out of gradients that are rounding; plain SGD does not."""
    args = settings(folder, optim="sgd", learning_rate=1e-3, max_steps=2, **changed)
    return train(args, objective, rollout_func=fixed)[0]


def train_shared(folder: Path) -> None:
    """As one process of several: one micro-batch a step each; the first writes what it saw."""
    for row in SHARED:
        watch = with_fixed_completions(folder, row, gradient_accumulation_steps=1)
        if int(os.environ["RANK"]) == 0:
            logged = torch.tensor([log["loss"] for log in watch.logs if "loss" in log])
            torch.save({"losses": logged, "gradients": watch.gradients}, folder / f"{row}.pt")
