"""The GPU benchmarks run on CPU at a small size: a lent GPU's minutes are not for finding typos."""

import pytest

pytestmark = pytest.mark.slow


def test_fused_script_measures_ours_beside_naive(capsys: pytest.CaptureFixture[str]) -> None:
    from perf import gpu_fused

    shape = (64, 600, 32)
    found = gpu_fused.measure(shape, "cpu")
    for name in ("tepo, torch, 512 MiB", "naive", "torch.compile(naive)"):
        assert "failed" not in found["rows"][name], found["rows"][name]
        assert found["rows"][name]["both_s"] > 0
    ours, naive = found["accuracy"]["tepo, torch"], found["accuracy"]["naive"]
    assert all(a <= 2 * b for a, b in zip(ours, naive, strict=True))
    gpu_fused.show(found)
    assert "matmul ceiling" in capsys.readouterr().out


def test_step_script_updates_and_samples() -> None:
    from perf import gpu_step

    row = gpu_step.time_updates(gpu_step.Case("small", 320, 16, 1024, True), "cpu", turns=1)
    assert row["tokens"] == 2 * (gpu_step.PROMPT + 8 * (320 - gpu_step.PROMPT - 1))  # a group's prompt once, no response's last token
    assert row["tokens_per_second"] > 0
    drawn = gpu_step.time_sampler("small", 8, 16, graphs=True, device="cpu")
    assert drawn["tokens"] <= 8 * 16
    assert drawn["gap"]["mean"] < 0.01
