"""Small random rollouts of a tabular softmax policy in float64:
every quantity an objective takes, from logits that are leaves."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tepo.objectives import Objective
from tepo.objectives.batch import Groups, TokenBatch

LENGTHS = (3, 1, 5, 0, 4, 2, 6, 1, 2)  # an empty response, two of length 1
REWARDS = (1, 0, 1, 0, 1, 0, 0, 0, 0)  # the third group has no variance
GROUPS = (7, 7, 7, 3, 3, 3, 9, 9, 9)
LIMIT = 6


@dataclass
class TabularCase:
    """logits: leaf [N, V] of the current policy; the other tables [N, V] are of other policies. tokens: int64 [N]."""

    logits: Tensor
    old_logits: Tensor
    initial_logits: Tensor
    sampler_logits: Tensor
    teacher_logits: Tensor
    tokens: Tensor
    lengths: Tensor
    rewards: Tensor
    group_ids: Tensor
    finished: Tensor
    uid: Tensor
    limit: int = LIMIT
    offsets: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.offsets = [0, *self.lengths.cumsum(0).tolist()]

    def chosen(self, logits: Tensor) -> Tensor:
        """Log-probs of the tokens [N]."""
        return torch.log_softmax(logits, -1)[torch.arange(len(self.tokens)), self.tokens]

    def entropy(self, logits: Tensor) -> Tensor:
        """Entropies [N]."""
        return -(torch.softmax(logits, -1) * torch.log_softmax(logits, -1)).sum(-1)

    def full_kl(self, anchor: Tensor) -> Tensor:
        """KL of the current policy to another, over the vocabulary [N]."""
        gap = torch.log_softmax(self.logits, -1) - torch.log_softmax(anchor, -1)
        return (torch.softmax(self.logits, -1) * gap).sum(-1)

    def groups(self) -> Groups:
        entropies = self.entropy(self.old_logits)
        values = 0.1 + 0.07 * (self.group_ids % 10).to(self.rewards.dtype)  # one a group
        return Groups(self.rewards, self.group_ids, self.lengths, entropies, self.finished, self.limit, values=values)

    def batch(self, objective: Objective, advantages: Tensor | None = None) -> TokenBatch:
        """All that the objective may want, with gradients down to the logits."""
        anchor = self.initial_logits if objective.needs.full_kl_anchor == "initial" else self.old_logits
        return TokenBatch(
            old_logprobs=self.chosen(self.old_logits),
            advantages=objective.advantages(self.groups()) if advantages is None else advantages,
            lengths=self.lengths,
            logprobs=self.chosen(self.logits),
            entropies=self.entropy(self.logits),
            old_entropies=self.entropy(self.old_logits),
            initial_logprobs=self.chosen(self.initial_logits),
            teacher_logprobs=self.chosen(self.teacher_logits),
            sampler_logprobs=self.chosen(self.sampler_logits),
            full_kl=self.full_kl(anchor),
            uid=self.uid,
            group_ids=self.group_ids,
            finished=self.finished,
            max_new_tokens=self.limit,
        )


def make_case(
    seed: int, *, drift: float = 0.5, vocabulary: int = 5, repeat: int = 1, dtype: torch.dtype = torch.float64
) -> TabularCase:
    """A case of 9 x `repeat` responses. drift: how far the current logits are from the old ones (0: on-policy)."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(LENGTHS * repeat)
    size = (int(lengths.sum()), vocabulary)

    def noise(scale: float) -> Tensor:
        return scale * torch.randn(size, generator=generator, dtype=torch.float64)

    old = noise(1.5)
    current = old + noise(drift) if drift else old.clone()
    old, initial, sampler, current = (table.to(dtype) for table in (old, old + noise(0.3), old + noise(0.1), current))
    tokens = torch.multinomial(torch.softmax(old, -1), 1, generator=generator)[:, 0]
    teacher = old + noise(0.5).to(dtype)
    group_ids = torch.tensor(GROUPS).repeat(repeat) + 10 * torch.arange(repeat).repeat_interleave(len(GROUPS))
    return TabularCase(
        logits=current.requires_grad_(),
        old_logits=old,
        initial_logits=initial,
        sampler_logits=sampler,
        teacher_logits=teacher,
        tokens=tokens,
        lengths=lengths,
        rewards=torch.tensor(REWARDS * repeat, dtype=dtype),
        group_ids=group_ids,
        finished=lengths < LIMIT,
        uid=100 + torch.arange(len(lengths)),
    )


def shuffled(case: TabularCase, order: Tensor) -> tuple[TabularCase, Tensor]:
    """The case of some of its responses in this order, and the place of each of their tokens in the old order."""
    parts = [torch.arange(case.offsets[i], case.offsets[i + 1]) for i in order.tolist()]
    places = torch.cat([torch.arange(0), *parts])
    tables = ("logits", "old_logits", "initial_logits", "sampler_logits", "teacher_logits", "tokens")
    moved = {name: getattr(case, name).detach()[places] for name in tables}
    moved["logits"].requires_grad_()
    moved |= {name: getattr(case, name)[order] for name in ("lengths", "rewards", "group_ids", "finished", "uid")}
    return TabularCase(**moved, limit=case.limit), places


def partitions(count: int) -> list[list[list[int]]]:
    """Micro-batches of 1 and the rest, of 5, one and the rest, backwards in turn, with an empty one, and random."""
    every = list(range(count))
    draws = torch.Generator().manual_seed(0)
    cuts = torch.randperm(count, generator=draws)[:6].sort().values
    return [
        [*([i] for i in every[:9]), every[9:]],
        [every[i : i + 5] for i in range(0, count, 5)],
        [every[:1], every[1:]],
        [every[::-2], every[-2::-2]],
        [every[7:], [], every[:7]],
        [part.tolist() for part in torch.randperm(count, generator=draws).tensor_split(cuts)],
    ]


def distance(one: Tensor, other: Tensor) -> float:
    """|one - other| / |other|; 0 where both are 0."""
    gap, size = float((one - other).norm()), float(other.norm())
    return gap / size if size else gap


def edge_cases(seed: int, bound: float) -> dict[str, TabularCase]:
    """Rollouts at the edge of what a trainer meets, in float32. bound: of the largest log-ratios."""
    case = make_case(seed, repeat=4, dtype=torch.float32)
    ones = torch.ones_like(case.rewards)
    singles, _ = shuffled(case, torch.tensor([1, 7, 10, 16]))
    return {
        "all right": replace(case, rewards=ones),
        "all wrong": replace(case, rewards=0 * ones),
        "a failed response without a token": shuffled(case, torch.tensor([3, 4, 5]))[0],
        "nothing but a response without a token": shuffled(case, torch.tensor([3]))[0],
        "responses of one token": replace(singles, rewards=torch.tensor([1.0, 0, 1, 0]), group_ids=0 * singles.uid),
        "a group of one": shuffled(case, torch.tensor([2]))[0],
        "the policy that sampled": make_case(seed, drift=0.0, dtype=torch.float32),
        "a policy far away": make_case(seed, drift=30.0, dtype=torch.float32),
        f"log-ratios of {bound:g}": _off_policy(case, bound),
        f"log-ratios of -{bound:g}": _off_policy(case, -bound),
    }


def _off_policy(case: TabularCase, gap: float) -> TabularCase:
    """The case with log-ratios of about `gap`, as after a step that went wrong."""
    rare = torch.zeros_like(case.old_logits)
    rare[torch.arange(len(case.tokens)), case.tokens] = abs(gap)
    old, new = (rare, 0.0) if gap > 0 else (0.0, rare)
    logits = (case.logits.detach() - new).requires_grad_()
    return replace(case, logits=logits, old_logits=case.old_logits - old)
