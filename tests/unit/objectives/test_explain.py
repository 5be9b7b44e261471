"""`tepo explain`: its coefficient is the gradient, its constants are those in force and sourced,
its differences are differences."""

import re

import pytest
import torch

from tepo.objectives import load_objective, names
from tepo.objectives.explain import explain, to_latex, to_text
from tepo.objectives.loading import objective_mapping, text
from tepo.objectives.testing.case import make_case
from tests.invariants.rows import CHANGES, SPLIT_DEPENDENT, changed

LABELS = {name: name for name in names()} | {
    label: changed(*change) for label, change in (CHANGES | SPLIT_DEPENDENT).items()
}


def evaluate(text: str, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """A printed coefficient as numbers: side by side means times."""
    code, _, definition = text.partition(", g = ")
    if definition:
        values = values | {"g": evaluate(definition, values)}
    code = re.sub(r"(?<=[\w)]) +(?=[\w(])", " * ", code)
    functions = {"exp": torch.exp, "sign": torch.sign, "sigmoid": torch.sigmoid, "clip": torch.clamp}
    return eval(code, {"__builtins__": {}}, functions | values)


OTHERWISE = re.compile("gmpo|(?<!top_)entropy|full gradient|exact|filtered|mean over|dual|gspo, tokens")


@pytest.mark.parametrize("label", [label for label in LABELS if not OTHERWISE.search(label)])
def test_the_coefficient_is_the_gradient(label):
    """d J / d log pi over the token's weight in the sums is what is printed, wherever no clip acts;
    0 where one does."""
    objective, case = load_objective(LABELS[label]), make_case(21, repeat=4)
    batch = case.batch(objective)
    leaf = batch.logprobs.detach().requires_grad_()
    batch = type(batch)(**{**batch.__dict__, "logprobs": leaf, "entropies": batch.entropies.detach()})
    out = objective.loss(batch, objective.prepare(batch, salt=3))
    scale = objective._completed(objective.prepare(batch, salt=3), batch).scale
    found = -torch.autograd.grad(out.loss, leaf)[0] / scale
    d, tokens = leaf.detach() - batch.old_logprobs, out.tokens
    anchor = (
        batch.initial_logprobs
        if objective.penalties and objective.penalties[0].anchor == "initial"
        else batch.old_logprobs
    )
    ratio = tokens.get("ratio", torch.ones_like(d))
    gap = torch.exp(batch.old_logprobs - batch.sampler_logprobs)
    values = {
        "r_t": d.exp(),
        "w_i": ratio,
        "p_t": ratio,
        "A": tokens["advantage"],
        "e": leaf.detach() - anchor,
        "M": tokens.get("kl_mask", torch.ones_like(d)).double(),
    }
    values |= {
        "lambda_t": tokens.get("weight"),
        "v_t": gap.clamp(max=2.0),
        "T_i": batch.lengths[batch.sequence],
        "tau": 1.05 - 0.05 * (batch.advantages > 0).double(),
    }
    kernel = [(ratio**k * torch.exp(c - c * ratio)) for k, c in ((2, 3), (3, 2))]
    values |= {"phi": torch.where(batch.advantages >= 0, *kernel), "sum_s": 1.0}
    values["e_s"] = torch.stack([values["e"][batch.sequence == row].sum() for row in batch.sequence.tolist()])
    if type(objective.correction).__name__ != "Truncated" or objective.correction.normalize:
        values["v_t"] = tokens.get("correction")  # by the literal formulas
    if "by sequence" in label:
        values["v_t"] = torch.stack(
            [gap[batch.sequence == row].prod().clamp(max=2.0) for row in batch.sequence.tolist()]
        )
    printed = evaluate(explain(objective).coefficient.text, values)
    stopped = (
        tokens["clipped"]
        if objective.surrogate.__class__.__name__ != "Cispo" and "clipped" in tokens
        else torch.zeros_like(d, dtype=torch.bool)
    )
    torch.testing.assert_close(found[~stopped], (printed * torch.ones_like(d))[~stopped], rtol=1e-8, atol=1e-10)
    if stopped.any() and not objective.penalties:
        assert found[stopped].abs().max() < 1e-12


@pytest.mark.parametrize(("name", "changes", "printed"), [
    ("tepo_no_kl", {"weight": {"kind": "steer"}}, "w_i mean_s(lambda_s A_s)"),
    ("grpo_s", {"weight": {"kind": "steer"}, "correction": {"kind": "truncated"}}, "r_t mean_s(lambda_s v_s A_s)"),
    ("tepo_no_kl", {"advantage": {"kind": "gtpo"}}, "w_i mean_s(A_s)"),
    ("prefix_is", {"ratio": {"gradient": "full"}, "weight": {"kind": "steer"}}, "sum_(u>=t) lambda_u A_u p_u/u"),
])  # fmt: skip
def test_the_coefficient_where_factors_differ_within_a_response(name, changes, printed):
    """The gradient of a ratio of several tokens carries the amounts of all of them;
    lambda_t w_i A would be the local gradient's."""
    objective, case = load_objective(changed(name, changes)), make_case(21, repeat=4)
    assert explain(objective).coefficient.text == printed
    batch = case.batch(objective)
    leaf = batch.logprobs.detach().requires_grad_()
    batch = type(batch)(**{**batch.__dict__, "logprobs": leaf})
    plan = objective.prepare(batch, salt=3)
    out = objective.loss(batch, plan)
    d = leaf.detach() - batch.old_logprobs
    amount = out.tokens["advantage"] * out.tokens.get("weight", 1.0)
    if objective.correction != load_objective("tepo").correction:
        amount = amount * torch.exp(batch.old_logprobs - batch.sampler_logprobs).clamp(max=2.0)
    found, expected = -torch.autograd.grad(out.loss, leaf)[0] / plan.scale, torch.empty_like(d)
    for row in range(len(batch.lengths)):
        own = batch.sequence == row
        if name == "prefix_is":
            steps = torch.arange(1, int(own.sum()) + 1)
            expected[own] = (amount[own] * out.tokens["ratio"][own] / steps).flip(0).cumsum(0).flip(0)
        else:
            expected[own] = (d[own].exp() if name == "grpo_s" else out.tokens["ratio"][own]) * amount[own].mean()
    free = torch.stack([~out.tokens["clipped"][batch.sequence == row].any() for row in range(len(batch.lengths))])[
        batch.sequence
    ]
    assert free.any()
    torch.testing.assert_close(found[free], expected[free], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("vs", ["grpo_dapo", "gtpo", "tepo_max_entropy"])
def test_every_explanation_fits_80_columns_and_loses_no_word(vs):
    other = load_objective(vs)
    for label, source in LABELS.items():
        found = explain(load_objective(source), other)
        narrow = to_text(found, width=80)
        assert max(map(len, narrow.splitlines())) <= 80, label
        assert set(to_text(found, width=10_000).split()) <= set(narrow.split()), label


@pytest.mark.parametrize("label", LABELS)
def test_every_row_explains_itself(label):
    objective = load_objective(LABELS[label])
    text = to_text(explain(objective))
    for part in (
        "To maximise",
        "J = 1/",
        "A = ",
        "Coefficient of ∇log π_t",
        "zero when",
        "Detached",
        "Constants",
        "The trainer must compute",
        "iffer",
    ):
        assert part in text, part
    latex = to_latex(explain(objective))
    assert latex.count("{") == latex.count("}")
    assert latex.count(r"\big(") + latex.count(r"\Big(") == latex.count(r"\big)") + latex.count(r"\Big)")
    assert "None" not in text + latex


@pytest.mark.parametrize("name", names())
def test_every_constant_of_a_shipped_row_has_a_source(name):
    for part in explain(load_objective(name)).constants:
        assert part.source or part.key == "penalty.tokens", part


def test_a_negative_penalty_is_a_plus():
    found = explain(load_objective(changed("tepo", {"penalty": {"coefficient": -1}})))
    assert found.formula.text.endswith("+ 1 KL_t M ]")
    assert found.coefficient.text == "w_i A  + 1 M (1 - exp(-e))"


def test_tepo():
    found = explain(load_objective("tepo"))
    assert found.formula.text == "J = 1/N sum_i sum_t [ min(w_i A, clip(w_i, 0.8, 1.28) A) - 0.001 KL_t M ]"
    assert found.coefficient.text == "w_i A  - 0.001 M (1 - exp(-e))"
    assert found.other == "grpo_dapo"
    constants = {part.key: part for part in found.constants}
    assert constants["penalty.coefficient"].source.startswith("TEPO Eq. 4; coefficient: TEPO 4.1")
    assert "penalty.fraction" not in constants, "a setting without a say is not shown"


PPO = "min(r_t A, clip(r_t, 0.8, 1.28) A)"
SUCCESSES = "A = normalised r~, r~ = r_i + 0.3 d_t H_t / sum_k H_k,t over the group's successes; 0 on failures"
FORMULAS = [
    ("grpo", {}, "1/B sum_i 1/T_i sum_t [ min(r_t A, clip(r_t, 0.8, 1.2) A) - 0.04 KL_t ]",
     ["KL_t = exp(-e) + e - 1, anchor: the initial policy, e = log pi_t - log anchor_t"]),
    ("dr_grpo", {"aggregation": {"constant": 7}}, "1/(B C) sum_i sum_t [ min(r_t A, clip(r_t, 0.8, 1.2) A) ]",
     ["A = R_i - mean over the group", "all ranks, C = 7"]),
    ("dr_grpo", {}, "1/(B C) sum_i sum_t [ min(r_t A, clip(r_t, 0.8, 1.2) A) ]", ["all ranks, C = the length limit"]),
    ("grpo_dapo", {"surrogate": {"dual": 3}}, f"1/N sum_i sum_t [ ({PPO}, at least 3 A where A < 0) ]", []),
    ("grpo_dapo", {"aggregation": {"over": "group"}, "correction": {"kind": "truncated", "cap": 4}},
     f"1/groups sum_g 1/N sum_i sum_t [ v_t {PPO} ]",
     ["v_t = min(pi_old / pi_sampler of the token, 4)", "non-empty responses of a prompt's group"]),
    ("grpo_dapo", {"correction": {"kind": "truncated", "level": "sequence"}}, f"1/N sum_i sum_t [ v_t {PPO} ]",
     ["v_t = min(product of pi_old / pi_sampler over the response, 2)"]),
    ("grpo_dapo", {"overlong": {"kind": "punish", "buffer": 0.25, "factor": 0.5}}, f"1/N sum_i sum_t [ {PPO} ]",
     ["R_i loses up to 0.5, linearly over the last 25% of the length limit"]),
    ("grpo_dapo", {"overlong": {"kind": "filter"}, "aggregation": {"over": "micro_batch"}},
     f"1/N sum_i sum_t [ {PPO} ]",
     ["truncated responses leave the sums, N and B", "non-empty responses of each micro-batch (as older verl)"]),
    ("tepo", {"surrogate": {"kind": "paper_clip", "low": 0.1, "high": 0.3}, "penalty": {"tolerance": 0.0}},
     "1/N sum_i sum_t [ min(w_i, clip(w_i, 0.9, 1.3)) A - 0.001 KL_t M ]",
     ["w_i = exp(1/T_i sum_t d_t)", "M = 1 where A > 0 and dH < 0, else 0",
      "dH = H(pi) - H(pi_old) at the token's prefix"]),
    ("tepo", {"penalty": {"mean_over": "masked", "tokens": "either", "entropy_change": "omega"}},
     "1/N sum_i sum_t [ min(w_i A, clip(w_i, 0.8, 1.28) A) - 0.001 KL_t M ]",
     ["M = 1 where (A > 0 and dH < 0) or (A < 0 and dH > 0), else 0", "sign dH = -sign A (log pi_t + H)",
      "the KL term is averaged over the tokens with M = 1, not by the sums' weights"]),
    ("cispo", {"surrogate": {"low": 0.4, "high": 4}}, "1/N sum_i sum_t [ sg[clip(r_t, 0.6, 5)] A log pi_t ]", []),
    ("cispo", {}, "1/N sum_i sum_t [ sg[clip(r_t, 0, 1.28)] A log pi_t ]", []),
    ("gmpo", {"surrogate": {"low": 0.1, "high": 0.3}}, "1/B sum_i 1/T_i sum_t [ A exp(1/T_i sum_t d'_t) ]",
     ["d'_t = min(d_t, 0.3) where A > 0, max(d_t, -0.1) elsewhere"]),
    ("sapo", {}, "1/B sum_i 1/T_i sum_t [ A 4/tau sigmoid(tau (r_t - 1)) ]", ["tau = 1 where A > 0, 1.05 elsewhere"]),
    ("gpg", {}, "1/N sum_i sum_t [ A log pi_t ]", ["A = alpha (R_i - mean) over the group"]),
    ("entropy_advantage", {}, f"1/N sum_i sum_t [ {PPO} ]",
     ["A = a + min(0.4 sg[H_t], |a|/2), a = (R_i - mean) / (std + eps) over the group"]),
    ("gtpo", {"advantage": {"alpha": 0.3}}, f"1/N sum_i sum_t [ {PPO} ]", [SUCCESSES]),
    ("gtpo_v2", {"advantage": {"alpha": 0.3}}, f"1/N sum_i sum_t [ {PPO} ]",
     [SUCCESSES + "; failures: A = normalised r-, r- = -h_t (1/H_t) / sum_k 1/H_k,t"]),
    ("gtpo_clipped", {}, f"1/N sum_i sum_t [ {PPO} ]",
     ["A = normalised r~, r~ = clip(0.9 + 0.1 d_t H_t / sum_k H_k,t, 1, 1.35) + R_len(i) on successes; "]),
    ("grpo_s", {}, "1/B sum_i 1/T_i sum_t [ min(w_i A, clip(w_i, 0.8, 1.28) A) ]",
     ["r^ = r_i + 0.1 n H_i / sum_k H_k over the group's successes"]),
    ("grpo_s_v2", {}, "1/B sum_i 1/T_i sum_t [ min(w_i A, clip(w_i, 0.8, 1.28) A) ]",
     ["r^ = r_i + 0.1 n H_i / sum_k H_k over the group's successes (H_i: arithmetic mean of the token entropies); "
      "0 on failures; failures: A = normalised r-, r- = -m (1/H_i) / sum_k 1/H_k", "w_i = 1/T_i sum_t exp(d_t)"]),
    ("steer", {}, f"1/N sum_i sum_t [ lambda_t {PPO} ]",
     ["lambda_t = exp(log(0.8) |Omega_t| / max |Omega|), Omega_t = A/pi_old pi (1-pi) (log pi + H)"]),
    ("steer", {"weight": {"form": "theorem", "shape": "linear", "ceiling": 1.2}},
     f"1/N sum_i sum_t [ lambda_t {PPO} ]",
     ["lambda_t = from 1.2 at the smallest |Omega| to 0.8 at the largest, "
      "Omega_t = I_clip r A pi (1-pi) (log pi + H)"]),
    ("kl_cov", {}, "1/N sum_i sum_t [ r_t A - 1 KL_t M ]",
     ["KL_t = |e|, anchor: the old policy", "M = 1 where the largest (log pi_t - mean)(A - mean), else 0"]),
    ("dppo_tv", {}, "1/N sum_i sum_t [ M r_t A ]",
     ["M = 0 where (A > 0 and dp > 0.2) or (A < 0 and dp < -0.2), else 1; dp = pi_t - pi_old,t", "r_t = exp(d_t)"]),
    ("ipo", {}, "1/N sum_i sum_t [ M r_t A - 0.002 KL_t ]",
     ["M = 0 where (dp > 0.1) or (dp < -0.1), else 1", "KL_t = e^2/2, anchor: the old policy"]),
    ("dppo_kl", {}, "1/N sum_i sum_t [ M r_t A ]",
     ["(A > 0 and dp > 0 and kl > 0.05) or (A < 0 and dp < 0 and kl > 0.05)",
      "kl = pi_old log(pi_old/pi) + (1 - pi_old) log((1 - pi_old)/(1 - pi))"]),
    ("kimi_k2_5", {}, "1/N sum_i sum_t [ clip(r_t, 0.8, 1.28) A - 0.002 KL_t ]", []),
    ("vespo", {}, "1/N sum_i sum_t [ sg[phi] A log pi_t ]",
     ["w_i = exp(sum_t d_t)",
      "phi = w_i^k exp(c (1 - w_i)); k = 2, c = 3 where A >= 0; k = 3, c = 2 elsewhere"]),
    ("opsm", {}, "1/B sum_i 1/T_i sum_t [ lambda_t min(r_t A, clip(r_t, 0.8, 1.2) A) ]",
     ["lambda_t = 0 where A < 0 and -1/T_i sum_s d_s > 0.5, else 1"]),
    ("top_entropy", {}, f"1/N sum_i sum_t [ lambda_t {PPO} ]",
     ["lambda_t = 1 on the 0.2 N tokens (at least one) of largest entropy H_t, else 0"]),
    ("icepop", {}, "1/B sum_i 1/T_i sum_t [ v_t min(r_t A, clip(r_t, 0.8, 1.2) A) ]",
     ["v_t = u, or 0 where u < 0.5 or u > 5, u = pi_old / pi_sampler of the token"]),
    ("tis_normalized", {"correction": {"floor": 0.25}}, f"1/N sum_i sum_t [ v_t {PPO} ]",
     ["v_t = max(min(product of pi_old / pi_sampler over the response, 2), 0.25); v_t then over its mean over "
      "responses"]),
    ("seq_mask_tis", {}, f"1/N sum_i sum_t [ v_t {PPO} ]",
     ["g_t = log pi_old,t - log pi_sampler,t",
      "v_t = min(exp(g_t), 2) where 0.5 <= exp(1/T_i sum_t g_t) <= 2, else 0"]),
    ("trm", {}, f"1/N sum_i sum_t [ v_t {PPO} ]", ["v_t = 1 where max_t g_t^2/2 <= 2.5, else 0"]),
    ("trm_current", {}, f"1/N sum_i sum_t [ lambda_t {PPO} ]",
     ["e_t = d_t + g_t", "lambda_t = 1 where max_t e_t^2/2 <= 2.5, else 0"]),
    ("top_entropy_v2", {}, f"1/N sum_i sum_t [ lambda_t {PPO} ]",
     ["lambda_t = N / their number on the 0.2 N tokens (at least one) of largest entropy H_t, else 0"]),
    ("vespo_sampler", {}, "1/N sum_i sum_t [ sg[phi] A log pi_t ]",
     ["g_t = log pi_old,t - log pi_sampler,t", "w_i = exp(sum_t (d_t + g_t))"]),
    ("kimi_k2_5_log_ratio", {}, "1/N sum_i sum_t [ clip(r_t, exp(-0.2), exp(0.28)) A - 0.002 KL_t ]", []),
    ("dro", {}, "1/B sum_i sum_t [ A log pi_t - 0.05 KL_t ]",
     ["KL_t = (sum_s e_s)^2 / (2 T_i), anchor: the old policy"]),
    ("max_rl", {}, f"1/N sum_i sum_t [ {PPO} ]", ["A = (R_i - mean) / mean over the group, 0 where mean <= 0"]),
    ("tepo_min_entropy", {}, "1/N sum_i sum_t [ min(w_i A, clip(w_i, 0.8, 1.28) A) - 0.001 H_t ]", []),
    ("tepo_max_entropy", {}, "1/N sum_i sum_t [ min(w_i A, clip(w_i, 0.8, 1.28) A) + 0.001 H_t ]", []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "sums", "lines"), FORMULAS)
def test_formulas_by_hand(name, changes, sums, lines):
    found = explain(load_objective(changed(name, changes)))
    assert found.formula.text == f"J = {sums}"
    text = "\n".join(line.text for line in found.definitions)
    for line in lines:
        assert line in text, text
    for words in ("failures: A", "averaged over the tokens with M = 1", "truncated responses", "R_i loses"):
        assert (words in text) == (words in "".join(lines)), words


OWN = "the ratio's value, except through the token's own log pi"
MASK = "M and all that it is made of"


@pytest.mark.parametrize(("name", "changes", "beside"), [
    ("grpo_dapo", {}, []),
    ("gspo", {}, []),
    ("gspo_token", {}, [OWN]),
    ("tepo_no_kl", {"ratio": {"gradient": "line_21"}}, [OWN]),
    ("prefix_is", {}, [OWN]),
    ("prefix_is", {"ratio": {"gradient": "full"}}, []),
    ("cispo", {}, ["the clipped ratio"]),
    ("entropy_advantage", {}, ["H_t in the advantage"]),
    ("gtpo", {}, ["old entropies"]),
    ("gtpo_clipped", {}, ["old entropies"]),
    ("grpo_s", {}, ["old entropies"]),
    ("steer", {"correction": {"kind": "truncated"}}, ["lambda_t", "v_t"]),
    ("dppo_tv", {}, ["M"]),
    ("vespo", {}, ["phi"]),
    ("opsm", {"correction": {"kind": "rejected"}}, ["lambda_t", "v_t"]),
    ("clip_cov", {}, ["lambda_t"]),
    ("tepo", {}, [MASK]),
    ("tepo", {"penalty": {"estimator": "full"}}, [MASK, "the old policy"]),
    ("tepo_kl_all", {}, []),
    ("grpo", {}, ["the initial policy"]),
    ("tepo_max_entropy", {}, []),
])  # fmt: skip
def test_what_is_detached(name, changes, beside):
    assert list(explain(load_objective(changed(name, changes))).detached) == ["A", "log pi_old", *beside]


def test_what_the_trainer_must_compute_is_said():
    said = {name: set(explain(load_objective(name)).needs) for name in ("grpo_dapo", "grpo", "tepo", "clip_cov")}
    assert said["grpo_dapo"] == set()
    assert said["grpo"] == {"the initial policy's log-probs"}
    assert said["tepo"] == {"current entropies", "the old policy's entropies"}
    assert said["clip_cov"] == {"current log-probs of the whole mini-batch before its first backward pass"}
    exact = changed("tepo_kl_all", {"penalty": {"estimator": "full"}})
    assert explain(load_objective(exact)).needs == ("the exact KL at each token",)
    assert "their gradient" in explain(load_objective("tepo_max_entropy")).needs
    corrected = changed("grpo_dapo", {"correction": {"kind": "truncated"}})
    assert explain(load_objective(corrected)).needs == ("the sampler's log-probs",)
    assert "log-probs and old log-probs alone" in to_text(explain(load_objective("grpo_dapo")))


PUNISHED = ("gdpo", *(place for place, row in enumerate(FORMULAS) if "punish" in str(row)))


@pytest.mark.parametrize("label", [label for label in (*LABELS, *range(len(FORMULAS))) if label not in PUNISHED])
def test_latex_has_the_numbers_of_the_text(label):
    source = LABELS[label] if isinstance(label, str) else changed(*FORMULAS[label][:2])
    found = explain(load_objective(source))
    for line in (found.formula, *found.definitions):
        decimals = re.findall(r"\d+\.\d+", line.text)
        assert sorted(set(re.findall(r"\d+\.\d+", line.latex))) == sorted(set(decimals)), line


def test_against_gspo():
    found = explain(load_objective("tepo"), load_objective("gspo"))
    changes = {row.key: (row.this, row.other) for row in found.differences}
    assert changes["surrogate.low"] == ("0.2", "0.0003")
    assert changes["aggregation.kind"] == ("token_mean", "seq_mean_token_mean")
    assert changes["penalty.kind"] == ("kl", "-")
    assert not any(key.startswith(("ratio", "advantage")) for key in changes)


def test_a_changed_setting_is_marked():
    found = explain(
        load_objective(changed("tepo", {"penalty": {"coefficient": 1.0}}) | {"name": "tepo"}), load_objective("tepo")
    )
    assert {part.key: part.source for part in found.constants}["penalty.coefficient"] == "set here"
    assert [(row.key, row.this, row.other) for row in found.differences] == [("penalty.coefficient", "1", "0.001")]
    assert "Differs from tepo as shipped" in to_text(found)


@pytest.mark.parametrize("name", ["trm", "top_entropy", "vespo", "kimi_k2_5", "dppo_kl"])
def test_a_departure_is_said_and_changes_no_id(name, tmp_path):
    """A comment of the row's file: what a run's id is made of is the same without it."""
    said = explain(load_objective(name)).departure
    assert f"Departs from its paper\n  {said}" in to_text(explain(load_objective(name)), width=200)
    lines = text(name).splitlines(keepends=True)
    assert f"# Departs from its paper: {said}\n" in lines
    without = tmp_path / f"{name}.yaml"
    without.write_text("".join(line for line in lines if "Departs" not in line))
    assert objective_mapping(load_objective(without)) == objective_mapping(load_objective(name))
    assert not explain(load_objective("tepo")).departure
