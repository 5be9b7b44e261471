"""One RL step on a real language model, SmolLM2-135M from its shipped base (scale `smollm2`), beside TRL's GRPOTrainer
and beside its bare matrix products, one thread. The settings of `perf.trl_step`, and: bfloat16 on both sides, the
prompts of the scale in their chat template, 8 prompts a step. In TRL's favour: its weights and moments are bfloat16
too, where ours have float32 masters; with float32 weights under autocast its step took 14% longer.

bare: the same products in bfloat16 without anything between them. Of a step's sampling one for each linear layer and
sampled token, as many rows at a time as are sampled side by side; of its updates three for each layer and trained
token. What is pushed beside these (prompts, old log-probs) is in ours alone.

Needs the model (`tepo model fetch smollm2-135m-wordings`; TEPO_MODELS names its folder) and an environment with TRL.
"""

from perf.ratios import BenchmarkRow, Unavailable, beside, cpu_seconds, products
from perf.trl_step import SMALL, Step, StepCost, against_trl, steps
from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.policy.model.model_location import resolve
from tepo.training.setup import TrainState

SCALE = "scale=smollm2"
TURNS_EACH = 7  # turns of a laptop benchmark for one here: a step of TRL takes minutes


def measure(turns: int, short: bool) -> list[BenchmarkRow]:
    """short: 2 prompts a step instead of 8."""
    try:
        resolve(compose([SCALE]).model.path)
    except UserError as missing:
        raise Unavailable(" ".join(str(missing).split())) from missing
    size = ["train.prompts_per_step=2", "train.mini_batch_prompts=1"] if short else SMALL
    found = steps([SCALE, *size], max(1, turns // TURNS_EACH), warm=0, more=with_bare)
    all_of, sampling = ([getattr(cost, kind) for cost in found["tepo"]] for kind in ("seconds", "sampling"))
    bare, bare_sampling = ([getattr(cost, kind) for cost in found["bare"]] for kind in ("seconds", "sampling"))
    updates, bare_updates = (
        [one - other for one, other in zip(*pair, strict=True)] for pair in ((all_of, sampling), (bare, bare_sampling))
    )
    return [
        against_trl("TRL's RL step (trl) / ours, SmolLM2-135M", found, 10.0),
        beside("RL step / its bare matrix products, SmolLM2-135M", "CPU s", all_of, bare, 2.0),
        beside("sampling / its bare products, SmolLM2-135M", "CPU s", sampling, bare_sampling, None),
        beside("updates / their bare products, SmolLM2-135M", "CPU s", updates, bare_updates, None),
    ]


def with_bare(parts: TrainState, own: Step) -> dict[str, Step]:
    """Our steps, and after each the products that its tokens cannot do without."""
    config, train, tokens = parts.policy.model.config, parts.config.train, [0.0]
    dtype, updates = parts.config.model.dtype, train.prompts_per_step // train.mini_batch_prompts * train.epochs
    rows = min(train.prompts_per_step * train.samples_per_prompt, parts.config.sampler.max_rows)

    def step(turn: int) -> StepCost:
        cost = own(turn)
        tokens[0] = cost.tokens
        return cost

    def bare(turn: int) -> StepCost:
        drawn, trained = round(tokens[0] / rows), round(tokens[0] * train.epochs / updates)
        sampling = cpu_seconds(products(config, rows, False, drawn, dtype))(turn)
        return StepCost(
            sampling + cpu_seconds(products(config, trained, True, updates, dtype))(turn), tokens[0], sampling
        )

    return {"tepo": step, "bare": bare}
