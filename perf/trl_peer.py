"""TRL's GRPOTrainer as a process that does one RL step a line of its standard input, for `perf.trl_step`:

    PYTHON perf/trl_peer.py JOB.json      JOB: model, dtype, prompts [{prompt, answer}], prompts_per_step,
                                          samples, mini_batch, epochs, new_tokens, learning_rate, scratch

Prints a JSON line when it is ready and one a step: CPU seconds of the process, and the tokens it sampled. Imports
nothing of tepo. A step is from one generation to the next: everything the trainer does in between counts.
"""

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """Exact match of the last box."""
    found = [BOX.findall(text) for text in completions]
    return [float(bool(boxes) and boxes[-1].strip() == gold) for boxes, gold in zip(found, answer, strict=True)]


def serve(job: dict[str, Any]) -> None:
    """Train, waiting for a line before each step."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    updates = job["prompts_per_step"] // job["mini_batch"] * job["epochs"]
    sampled = {"tokens": 0}

    class Counted(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            result = super()._generate_single_turn(*args, **kwargs)
            sampled["tokens"] = sum(map(len, result[0]))
            return result

    class Gate(TrainerCallback):
        started = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % updates:
                return
            row = {"cpu_s": time.process_time() - self.started, **sampled} if state.global_step else {"ready": True}
            print("\n" + json.dumps(row), flush=True)
            if not sys.stdin.readline().strip():
                raise SystemExit
            self.started = time.process_time()

    settings = GRPOConfig(  # the fastest fair ones found on a CPU
        output_dir=job["scratch"],
        seed=0,
        num_generations=job["samples"],
        max_completion_length=job["new_tokens"],
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        per_device_train_batch_size=job["mini_batch"] * job["samples"],
        gradient_accumulation_steps=1,
        steps_per_generation=job["prompts_per_step"] // job["mini_batch"],
        num_iterations=job["epochs"],
        loss_type="dapo",
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        scale_rewards="group",
        mask_truncated_completions=False,
        learning_rate=job["learning_rate"],
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        max_grad_norm=1.0,
        max_steps=1000 * updates,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        log_completions=False,
        use_cpu=True,
        bf16=False,
        fp16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        shuffle_dataset=False,
    )
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    trainer = Counted(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"])),
        reward_funcs=reward,
        args=settings,
        train_dataset=Dataset.from_list(job["prompts"]),
        processing_class=tokenizer,
        callbacks=[Gate()],
    )
    trainer.train()


if __name__ == "__main__":
    serve(json.loads(Path(sys.argv[1]).read_text()))
