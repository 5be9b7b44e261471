import pytest
import torch

from tepo.common.errors import RunFailed
from tepo.objectives.testing.simulated_ranks import on_ranks
from tepo.sampling.gap import Evidence, Gap, GapAlarm, borrowed_weights, default_bound
from tests.support.models import tiny_model


def alarm(bound=1e-3, sampler_dtype="float32", trainer_dtype="float32", temperature=1.0, **more):
    return GapAlarm(bound, temperature=temperature, dtypes=(sampler_dtype, trainer_dtype), **more)


def test_gap_is_what_its_names_say():
    s, t = torch.tensor([-1.0, -2.0, -0.5, -4.0]), torch.tensor([-1.5, -2.0, -0.4, -1.0])
    gap = Gap.measure(s, t, bound=0.02)
    apart = (s.exp() - t.exp()).abs().double()
    correlation = float(torch.corrcoef(torch.stack([s.exp(), t.exp()]))[0, 1])
    assert gap.metrics["training/rollout_probs_diff_mean"] == pytest.approx(float(apart.mean()), rel=1e-6)
    assert gap.metrics["training/rollout_probs_diff_std"] == pytest.approx(float(apart.std(correction=0)), rel=1e-5)
    assert gap.metrics["training/rollout_actor_probs_pearson_corr"] == pytest.approx(correlation, rel=1e-5)
    assert (gap.mean, gap.max, gap.share) == (pytest.approx(0.9), pytest.approx(3.0), pytest.approx(0.5))


def test_a_few_far_off_tokens_ring_although_the_mean_is_small():
    s, checked = torch.full((1000,), -1.0), alarm(0.1, "bfloat16", "bfloat16")
    t = s.clone()
    t[:19] -= 5
    checked.check(s, t)
    checked.check(s[16:286], t[16:286])  # three of one group
    t[0] = torch.nan
    for part, said in ((slice(1, 900), r"2\.0% of tokens"), (slice(1000), None)):
        with pytest.raises(RunFailed, match=said):
            checked.check(s[part], t[part])


def test_rounding_is_no_alarm():
    s, off = -torch.rand(5000) * 3, 0.04 * torch.randn(5000)
    alarm(default_bound("bfloat16"), "bfloat16", "bfloat16").check(s, s + off)
    with pytest.raises(RunFailed, match="dtype: the sampler computes in bfloat16, the trainer in float32"):
        alarm(default_bound("float32"), "bfloat16").check(s, s + off)


def test_a_gap_that_has_grown_since_the_first_rollout_rings():
    """In float32 it stops, far below the bound; a first gap that is no rounding does too. What the bound allows scales
    the rest."""
    s = -torch.rand(1000).double()
    checked = alarm()
    checked.check(s, s + 2e-7)
    checked.check(s, s + 9e-6)
    with pytest.raises(RunFailed, match=r"mean log-prob gap 5e-05 \(2e-07 in the first rollout, at most 1e-05 now\)"):
        checked.check(s, s + 5e-5)
    with pytest.raises(RunFailed, match="mean log-prob gap 5e-05"):
        alarm().check(s, s + 5e-5)
    alarm(1e-2).check(s, s + 5e-5)


def test_a_gap_that_has_grown_in_bfloat16_warns_once(capsys):
    """Not for few tokens: the mean of forty gaps with heavy tails lies far from that of many."""
    s, off, checked = -torch.rand(1000), torch.full((40,), 0.003), alarm(0.1, "bfloat16", "bfloat16")
    checked.check(s[:40], s[:40] + off)
    off[:2] = 0.1
    checked.check(s[:40], s[:40] + off)
    checked = alarm(0.1, "bfloat16", "bfloat16")
    for gap in (0.004, 0.007):
        checked.check(s, s + gap)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        checked.check(s, s + 0.009, where="step 3")
    assert capsys.readouterr().err.count("warning: step 3: mean log-prob gap of sampler and trainer 0.009") == 1


def logprobs(model):
    rows = model(torch.tensor([range(2, 26)])).logits[0, :-1].log_softmax(-1)
    return rows.gather(1, torch.arange(3, 26)[:, None])[:, 0].detach()


@pytest.mark.parametrize("tied", [True, False])
def test_a_tensor_that_stayed_behind_rings_wherever_it_is(tied):
    """By a change that a few updates at 1e-6 make. The whole sync and the output matrix are named."""
    model = tiny_model("qwen2", tie_word_embeddings=tied)
    old = {name: value.clone() for name, value in model.named_parameters(remove_duplicate=False)}
    generator, checked = torch.Generator().manual_seed(0), alarm()
    checked.synced(model.state_dict())
    checked.check(logprobs(model), logprobs(model))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 3e-5 * torch.randn(parameter.shape, generator=generator).sign()
    checked.synced(model.state_dict())
    checked.check(logprobs(model), logprobs(model))
    evidence = Evidence(lambda temperature: logprobs(model), model=model)
    stale = {name: {name: old[name]} for name in old if "k_proj.bias" not in name}  # which adds the same to all scores
    causes = {"lm_head.weight": ("forgotten lm_head", evidence), "all": ("weights not synced", evidence)}
    for name, weights in {**stale, "all": old}.items():
        with borrowed_weights(model, weights):
            sampled = logprobs(model)
        said, looked_at = causes.get(name, ("likely cause", None))
        with pytest.raises(RunFailed, match=said):
            checked.check(sampled, logprobs(model), looked_at)


def test_a_sampler_that_drew_at_another_temperature_is_named():
    """Trained models give sharp distributions: that of each temperature has one place where the gap is least."""
    logits = 3 * torch.randn(500, 20, generator=torch.Generator().manual_seed(0)).double()

    def at(temperature):
        return (logits / temperature).log_softmax(-1)[:, 0]

    for drawn, said in ((0.6, "of temperature 0.6, the trainer's of 0.9"), (1.0, r"1, the .* \(raw log-probs\?\)")):
        with pytest.raises(RunFailed, match=said):
            alarm(temperature=0.9).check(at(drawn), at(0.9), Evidence(at))
    with pytest.raises(RunFailed, match=r"implement the model differently.*ruled out: temperature"):
        alarm().check(at(1.0), at(1.0) - 1 - torch.rand(500), Evidence(lambda temperature: at(1.0) - 2))


def test_ranks_measure_and_diagnose_together():
    """Two with unequal shares give the figures of the whole; one without sequences takes part in the diagnosis."""
    s, t = -torch.rand(30).double(), -torch.rand(30).double()
    shares = [slice(0, 7), slice(7, 30)]
    for gap in on_ranks(lambda comm: Gap.measure(s[shares[comm.rank]], t[shares[comm.rank]], 1e-3, comm)):
        assert gap.metrics == pytest.approx(Gap.measure(s, t, 1e-3).metrics)

    def diagnose(comm):
        sampler, trainer = torch.tensor([[-1.5, -3.5], [-1.0, -2.0]])[:, : 2 if comm.rank == 0 else 0]
        checked = alarm(comm=comm, fresh=lambda pairs: [trainer.numpy() for _ in pairs])
        pairs = [([1], [2, 3])] if comm.rank == 0 else []
        with pytest.raises(RunFailed, match="stale prefix cache"):
            checked.check(sampler, trainer, Evidence(lambda _: trainer, pairs))

    on_ranks(diagnose)
