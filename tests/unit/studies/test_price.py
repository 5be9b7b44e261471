"""What is to be paid is told from runs on the same data, or from a probe, never from other runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from tepo.studies import price
from tepo.studies.plan_all import plan_all
from tepo.studies.price import Cost, record
from tepo.training.run_folder import RunFolder
from tepo_cli.show_plan import show_price

COST = Cost("laptop", "grpo_dapo", 36, 7, cpu_s=41, training_s=36, measuring_s=4, tokens=36_000, core_s=35)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one measured run on the default mix."""
    (tmp_path / "run").mkdir()
    record(RunFolder(tmp_path / "run"), COST)
    return tmp_path


def shown(scale: str, store: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    ((_, units),) = plan_all(["panel-e"], scale, store=store, overrides=words)
    show_price(units, scale, store)
    return capsys.readouterr().err


def test_runs_on_the_same_data_price_a_plan(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "(205 s; about 2 minutes on two idle cores), 0.2M sampled tokens" in shown("laptop", store, capsys)


def test_runs_on_other_data_do_not(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = []
    monkeypatch.setattr(
        price, "probe", lambda unit: (probed.append(unit), replace(COST, data=unit.config.data.name, training_s=72))[1]
    )
    text = shown("laptop", store, capsys, "data=laptop_sparse")
    assert len(probed) == 1
    assert "from a probe of two steps" in text
    assert "(369 s;" in text  # 5 x (36 steps x 2 s + 3 benchmarks x 4/7 s)


def test_laptop_runs_do_not_price_the_papers(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown("paper", store, capsys)
    assert "no price from measurements" in text
    assert "CPU hours" not in text
