"""TRL's GRPOTrainer with the loss of any objective:

trainer = ObjectiveTrainer(
    objective="tepo", model=…, reward_funcs=…, args=GRPOConfig(num_iterations=2, …), train_dataset=…
)

Generation, rewards, optimiser, logging and checkpoints are TRL's. Advantages, loss and its metrics are the objective's,
with denominators and selections over all micro-batches of an optimiser step and all processes.
See docs/trainers-use.md.
"""

import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tepo.common.errors import UserError
from tepo.common.randomness import derive
from tepo.common.text import listed
from tepo.integrations.trainers import TRL, check_version, missing
from tepo.objectives import Groups, Metrics, Objective, Plan, TokenBatch, load_objective
from tepo.objectives.batch import gather
from tepo.training.distributed.process_group import TorchComm

INSTALL = 'pip install "tepo[trl]"'
TESTED = ("1.16",)

try:
    import trl
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise missing("trl", INSTALL) from error

check_version("trl", trl.__version__, TESTED, INSTALL)

ALIASES = {  # TRL's names of our metrics
    "policy_loss": "actor/pg_loss",
    "entropy": "actor/entropy",
    "kl": "actor/kl_loss",
    "clip_ratio/region_mean": "actor/pg_clipfrac",
}
REPLACED = {  # settings of TRL's loss, and what says it here
    "loss_type": "the objective",
    "importance_sampling_level": "the line w",
    "epsilon": "the constant low",
    "epsilon_high": "the constant high",
    "delta": "the line J",
    "beta": "the constant beta, with kl: k3(logp - logp_initial)",
    "use_bias_correction_kl": "kl: exp(d)*k3(logp - logp_initial)",
    "scale_rewards": "the line A",
    "multi_objective_aggregation": "the line A",
    "mask_truncated_completions": "keep: finished",
    "entropy_coef": "the line J, with + c*H",
    "use_adaptive_entropy": "the line J, with + c*H",
    "top_entropy_quantile": "the line v: top_b(H, share)",
    "off_policy_mask_threshold": "the line v: ~((A < 0) & (-mean_i(d) > delta))",
}
PER_RESPONSE = (  # what a batch of TRL's holds for each response
    *("completion_mask", "tool_mask", "advantages", "old_per_token_logps", "ref_per_token_logps"),
    *("sampling_per_token_logps", "old_entropies", "uid", "group_ids", "finished"),
)
MEDIA = (  # what a batch may hold of images
    *("pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles"),
    *("image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids"),
)


@dataclass
class Window:
    """The micro-batches of one optimiser step on this process."""

    plan: Plan
    sequences: list[int]  # rows of each micro-batch
    done: int = 0
    metrics: Metrics | None = None

    def next(self) -> Plan:
        """The plan of the next micro-batch."""
        begin = sum(self.sequences[: self.done])
        self.done += 1
        return self.plan.select(range(begin, begin + self.sequences[self.done - 1]))


class ObjectiveTrainer(GRPOTrainer):
    """GRPOTrainer whose advantages and loss are an objective's: a shipped name, a file, a mapping or an Objective.

    Everything else is given as to GRPOTrainer. Raises UserError for settings of TRL's loss that the objective replaces,
    and for an objective that TRL cannot serve. Warns where a rollout has one update, in which parts of the objective do
    nothing."""

    def __init__(
        self, *, objective: str | Path | Mapping[str, Any] | Objective, args: GRPOConfig | None = None, **given: Any
    ):
        self.policy_objective = load_objective(objective)
        args = GRPOConfig() if args is None else copy(args)
        check(self.policy_objective, args)
        if self.policy_objective.needs.sampler_logprobs and not args.use_vllm and given.get("rollout_func") is None:
            raise _no_sampler(self.policy_objective)
        warn_of_one_update(self.policy_objective, args)
        if self.policy_objective.needs.initial_policy:
            args.beta = 1.0  # with 0 TRL keeps no reference model; its own loss is not computed
        self._window: Window | None = None
        super().__init__(args=args, **given)
        self._comm = TorchComm(self.accelerator.device) if self.accelerator.num_processes > 1 else None

    def _calculate_rewards(self, *given: Any) -> Tensor:
        self._rewards_per_func = super()._calculate_rewards(*given)
        return self._rewards_per_func

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch with our advantages, and with what the objective reads of the policy that sampled."""
        output = super()._generate_and_score_completions(inputs)
        needs = self.policy_objective.needs
        if needs.sampler_logprobs and output.get("sampling_per_token_logps") is None:
            raise _no_sampler(self.policy_objective)
        # TRL leaves old log-probs out where a rollout has one update, and a correction weighs them before that update.
        unscored = needs.sampler_logprobs and output.get("old_per_token_logps") is None
        if needs.old_entropies or unscored:
            with torch.no_grad():
                size = self.args.per_device_train_batch_size if self.model.training else None
                logprobs, entropies, _ = self._scored(self.model, output, batch_size=size)
            if needs.old_entropies:
                output["old_entropies"] = entropies
            if unscored:
                output["old_per_token_logps"] = logprobs
        begin, number = self.accelerator.process_index * len(inputs), len(inputs)
        samples = self.num_generations if self.model.training else self.num_generations_eval
        output["uid"] = torch.arange(begin, begin + number, device=output["completion_ids"].device)
        output["group_ids"] = output["uid"] // samples
        ends = torch.tensor([*self.eos_token_ids, self._tokenizer.pad_token_id], device=output["completion_ids"].device)
        last = (output["completion_mask"].sum(1) - 1).clamp(min=0)
        output["finished"] = torch.isin(output["completion_ids"].gather(1, last[:, None])[:, 0], ends).long()
        output["advantages"] = self._advantages(output)
        return output

    def _advantages(self, output: dict[str, Any]) -> Tensor:
        """Per-token advantages [S, T] of this process's completions. Groups may be spread over processes, so each
        process works out those of all. A completion that no reward function scored counts in no group and has 0."""
        per_function, comm, mask = self._rewards_per_func, self._comm, loss_mask(output)
        rewards = (per_function * self.reward_weights.to(per_function.device)).nansum(1)
        scored = ~per_function.isnan().all(1)
        lengths, groups, finished = (
            gather(part, comm) for part in (mask.sum(1), output["group_ids"], output["finished"])
        )
        tokens = scored.repeat_interleave(lengths)
        entropies = gather(output["old_entropies"][mask], comm)[tokens] if "old_entropies" in output else None
        graded = Groups(
            rewards[scored],
            groups[scored],
            lengths[scored],
            old_entropies=entropies,
            finished=finished[scored].bool(),
            max_new_tokens=self.max_completion_length,
        )
        flat = rewards.new_zeros(len(tokens))
        flat[tokens] = self.policy_objective.advantages(graded)
        local_rows = slice(self.accelerator.process_index * len(mask), (self.accelerator.process_index + 1) * len(mask))
        # Put the mean advantage of each completion into TRL's table of completions, in the place of TRL's own
        logged = self._logs["advantages"]
        for _ in range(min(len(lengths), len(logged))):
            logged.pop()
        logged.extend(float(part.mean()) if len(part) else 0.0 for part in flat.split(lengths.tolist()))
        begin = int(lengths[: local_rows.start].sum())
        return rewards.new_zeros(mask.shape).masked_scatter(mask, flat[begin : begin + int(lengths[local_rows].sum())])

    def _scored(self, model: Any, inputs: dict[str, Any], batch_size: int | None = None) -> tuple[Tensor, Tensor, Any]:
        """Log-probs and entropies [S, T] of completions, and the auxiliary loss of a mixture of experts."""
        tokens = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attended = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        return self._get_per_token_logps_and_entropies(
            model,
            tokens,
            attended,
            inputs["completion_ids"].shape[1],
            batch_size=batch_size,
            compute_entropy=True,
            compute_aux_loss=self.aux_loss_enabled,
            **{name: inputs.get(name) for name in MEDIA},
        )

    def _batch(self, inputs: dict[str, Any], logprobs: Tensor | None, entropies: Tensor | None) -> TokenBatch:
        """The tokens of padded completions. Without old log-probs, which TRL leaves out where nothing has moved since
        the rollout, the current ones are the old ones. Before these are known, no row reads them: NaN would show."""
        mask = loss_mask(inputs)

        def flat(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[mask]

        advantages, current = inputs["advantages"][mask], flat(logprobs)
        old = flat(inputs.get("old_per_token_logps"))
        if old is None:
            old = torch.full_like(advantages, torch.nan) if current is None else current.detach()
        sampler = flat(inputs.get("sampling_per_token_logps"))
        return TokenBatch(
            old,
            advantages,
            mask.sum(1),
            logprobs=current,
            entropies=flat(entropies),
            old_entropies=flat(inputs.get("old_entropies")),
            initial_logprobs=flat(inputs.get("ref_per_token_logps")),
            sampler_logprobs=None if sampler is None else torch.where(sampler.isnan(), old, sampler),
            uid=inputs["uid"],
            group_ids=inputs["group_ids"],
            finished=inputs["finished"].bool(),
            max_new_tokens=self.max_completion_length,
        )

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """This micro-batch's part of the step's loss; TRL adds the gradients of the parts up."""
        if self._window is None:
            self._window = self._open(model, inputs)
        window = self._window
        logprobs, entropies, auxiliary = self._scored(model, inputs)
        if not self.policy_objective.needs.entropy_gradient:
            entropies = entropies.detach()
        out = self.policy_objective.loss(self._batch(inputs, logprobs, entropies), window.next())
        window.metrics = out.metrics if window.metrics is None else window.metrics + out.metrics
        if window.done == len(window.sequences):
            self._log(window)
            self._window = None
        loss = out.loss * self.accelerator.num_processes  # whose gradients are averaged
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * auxiliary / len(window.sequences)
        return loss

    def _open(self, model: Any, inputs: dict[str, Any]) -> Window:
        """Settle denominators and selections over all micro-batches of this step and all processes."""
        parts = [inputs]
        if self.model.training:
            begin = self._step % self.args.steps_per_generation
            parts = self._buffered_inputs[begin : begin + self.args.gradient_accumulation_steps]
        logprobs = entropies = None
        if self.policy_objective.needs.prepass:
            with torch.no_grad():
                current = [self._scored(model, part) for part in parts]
            logprobs, entropies = torch.cat([pair[0] for pair in current]), torch.cat([pair[1] for pair in current])
        names = [name for name in PER_RESPONSE if inputs.get(name) is not None]
        together = {name: torch.cat([part[name] for part in parts]) for name in names}
        salt = derive(self.args.seed, "objective", self.state.global_step)
        plan = self.policy_objective.prepare(self._batch(together, logprobs, entropies), self._comm, salt)
        return Window(plan, [len(part["completion_ids"]) for part in parts])

    def _log(self, window: Window) -> None:
        """The step's metrics over all its tokens, under verl's and TRL's names."""
        assert window.metrics is not None
        means = window.metrics.means(self._comm)
        means |= {alias: means[name] for alias, name in ALIASES.items() if name in means}
        for name, value in means.items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)


def loss_mask(inputs: dict[str, Any]) -> Tensor:
    """The tokens that the policy sampled, bool [S, T]: without padding and without the answers of tools."""
    mask = inputs["completion_mask"].bool()
    return mask if inputs.get("tool_mask") is None else mask & inputs["tool_mask"].bool()


def _no_sampler(objective: Objective) -> UserError:
    """The error for a correction of the sampler's log-probs that TRL does not have."""
    what = "the row weighs the sampler's log-probs, and TRL has none"
    fix = "use_vllm=True, or a rollout_func that returns `logprobs`"
    return UserError(what, where=f"ObjectiveTrainer, objective {objective.name}", fix=fix)


def warn_of_one_update(objective: Objective, args: GRPOConfig) -> None:
    """Warn where each rollout has one optimiser step, and the row compares with the policy that sampled."""
    assert args.steps_per_generation is not None  # of GRPOConfig's own defaults
    updates = args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
    if updates == 1 and (idle := [name for name in ("d", "dH") if name in objective.given]):
        what = (
            f"objective {objective.name}: a rollout has one optimiser step, taken by the policy that sampled it, where "
            f"{listed(f'{name} = 0' for name in idle)}: clips, masks and penalties of that do nothing. "
            f"Try num_iterations=2, or steps_per_generation={2 * args.steps_per_generation}"
        )
        warnings.warn(what, stacklevel=3)


def check(objective: Objective, args: GRPOConfig) -> None:
    """Raise UserError for settings that would be ignored, and for needs that TRL does not meet."""
    TRL.check(objective)
    where = f"ObjectiveTrainer, objective {objective.name}"
    defaults = {part.name: part.default for part in fields(GRPOConfig)}
    for name, here in REPLACED.items():
        if getattr(args, name) != defaults[name]:
            what = f"GRPOConfig({name}={getattr(args, name)!r}) is of TRL's loss, which the objective replaces"
            raise UserError(what, where=where, fix=f"leave it out, and say it by {here}")
    if filters := [
        name for name in ("min_p", "top_k", "top_p") if getattr(args, name) not in (None, defaults[name], 0)
    ]:
        what = f"with {', '.join(filters)} completions come from another distribution than the one whose ratio, KL and "
        what += "entropy the objective computes"
        raise UserError(what, where=where, fix="leave it out: training draws from the whole policy")
    if args.steps_per_generation % args.gradient_accumulation_steps:
        what = (
            f"an optimiser step of {args.gradient_accumulation_steps} micro-batches ends within a generation of "
            f"{args.steps_per_generation}, so its denominators are not known when it begins"
        )
        raise UserError(what, where=where, fix="steps_per_generation as a multiple of gradient_accumulation_steps")
