"""The gap alarm's arithmetic and its verdicts where no sampler is needed."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn

from tepo.errors import RunFailed
from tepo.sampling.gap import Evidence, Gap, GapAlarm, borrowed_weights, default_bound


def alarm(bound=1e-3, sampler_dtype="float32", trainer_dtype="float32", temperature=1.0):
    return GapAlarm(bound, temperature=temperature, dtypes=(sampler_dtype, trainer_dtype))


def test_gap_is_what_its_names_say():
    s, t = torch.tensor([-1.0, -2.0, -0.5, -4.0]), torch.tensor([-1.5, -2.0, -0.4, -1.0])
    gap = Gap.measure(s, t, bound=0.02)
    apart = (s.exp() - t.exp()).abs().double()
    assert gap.probs_mean == pytest.approx(float(apart.mean()), rel=1e-6)
    assert gap.probs_std == pytest.approx(float(apart.std(correction=0)), rel=1e-5)
    assert gap.correlation == pytest.approx(float(torch.corrcoef(torch.stack([s.exp(), t.exp()]))[0, 1]), rel=1e-5)
    assert (gap.mean, gap.max, gap.share) == (pytest.approx(0.9), pytest.approx(3.0), pytest.approx(0.5))


def test_ranks_add_up():
    """Two ranks with unequal shares give the figures of the whole."""
    s, t = -torch.rand(30).double(), -torch.rand(30).double()

    class Ranks:
        def __init__(self, other):
            self.other = other

        def all_sum(self, value):
            return value + self.other.pop(0)

        def all_gather(self, value):
            return [value, self.other.pop(0)]

    class Record(Ranks):
        def all_sum(self, value):
            self.other.append(value)
            return value

        def all_gather(self, value):
            self.other.append(value)
            return [value]

    record = Record([])
    Gap.measure(s[:7], t[:7], 1e-3, record)
    both = Gap.measure(s[7:], t[7:], 1e-3, Ranks(record.other))
    assert both.metrics() == pytest.approx(Gap.measure(s, t, 1e-3).metrics())


def test_nan_rings():
    with pytest.raises(RunFailed):
        alarm().check(torch.tensor([-1.0, float("nan")]), torch.tensor([-1.0, -1.0]))


def test_a_few_far_off_tokens_ring_although_the_mean_is_small():
    s = torch.full((1000,), -1.0)
    t = s.clone()
    t[:15] -= 5
    assert (s - t).abs().mean() < 0.1
    with pytest.raises(RunFailed, match=r"1\.5% of tokens"):
        alarm(0.1, "bfloat16", "bfloat16").check(s, t)
    t[5:15] += 5
    alarm(0.1, "bfloat16", "bfloat16").check(s, t)


def test_rounding_is_no_alarm():
    s = -torch.rand(5000) * 3
    alarm(default_bound("bfloat16"), "bfloat16", "bfloat16").check(s, s + 0.04 * torch.randn(5000))
    with pytest.raises(RunFailed, match="dtype: the sampler computes in bfloat16, the trainer in float32"):
        alarm(default_bound("float32"), "bfloat16").check(s, s + 0.04 * torch.randn(5000))


def test_what_no_fault_explains_is_said_so():
    s = -torch.rand(500) * 3
    with pytest.raises(RunFailed, match=r"implement the model differently.*ruled out: temperature"):
        alarm().check(s, s - 1 - torch.rand(500), Evidence(score=lambda temperature: s - 2 - torch.rand(500)))


def test_borrowed_weights_untie_for_a_moment_and_come_back():
    body, head = nn.Embedding(4, 3), nn.Linear(3, 4, bias=False)
    head.weight = body.weight
    model = nn.ModuleDict({"body": body, "lm_head": head})
    with borrowed_weights(model, {"lm_head.weight": torch.zeros(4, 3)}):
        assert head.weight.abs().sum() == 0
        assert body.weight.abs().sum() > 0
    assert head.weight is body.weight
    assert body.weight.requires_grad


def test_a_rank_without_sequences_takes_part_in_the_diagnosis():
    """Two ranks as threads that meet in every collective: where one stayed away, the other would wait."""
    meeting, values = Barrier(2), {}

    class Rank:
        def __init__(self, rank):
            self.rank = rank

        def all_gather(self, value):
            values[self.rank] = value
            meeting.wait(timeout=120)
            both = [values[0], values[1]]
            meeting.wait(timeout=120)
            return both

        def all_sum(self, value):
            return sum(self.all_gather(value))

    def diagnose(rank):
        trainer = torch.tensor([-1.0, -2.0]) if rank == 0 else torch.empty(0)
        alarm = GapAlarm(
            1e-3,
            temperature=1.0,
            dtypes=("float32", "float32"),
            comm=Rank(rank),
            fresh=lambda pairs: [trainer.numpy() for _ in pairs],
        )
        with pytest.raises(RunFailed, match="stale prefix cache"):
            alarm.check(
                trainer - torch.tensor([0.5, 1.5])[: len(trainer)],
                trainer,
                Evidence(lambda temperature: trainer, [([1], [2, 3])] if rank == 0 else [], None),
            )
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(diagnose, range(2)))
