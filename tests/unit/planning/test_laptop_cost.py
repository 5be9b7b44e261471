import re
from dataclasses import replace
from pathlib import Path

import pytest

from tepo.planning import laptop_cost
from tepo.planning.laptop_cost import unpriced
from tepo.store.cost import Cost, work_of
from tepo.store.run_folder import RunFolder
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all
from tepo_cli.show_plan import show_price
from tests.support.runs import write

COST = Cost("laptop", "grpo_dapo", 36, 7, cpu_s=41, training_s=36, measuring_s=4, tokens=36_000, core_s=35)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one measured run on the default mix."""
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").add_cost(COST)
    return tmp_path


def shown(scale: str, store: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    ((_, units),) = plan_all(["panel-e"], scale, store=store, overrides=words)
    show_price(units, store)
    return capsys.readouterr().err


def test_runs_on_the_same_data_price_a_plan(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = shown("laptop", store, capsys).splitlines()[:2]
    assert first == "5 runs, 5 to do: 3.4 CPU minutes, about 1.7 minutes on two idle cores"  # 5 x 41 s
    assert second.endswith(f" MiB of disk; from medians over 1 measured run in {store}")


def test_runs_on_other_data_do_not(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = []
    monkeypatch.setattr(
        laptop_cost,
        "probe",
        lambda unit: (probed.append(unit), replace(COST, data=unit.config.data.name, training_s=72))[1],
    )
    text = shown("laptop", store, capsys, "data=laptop_sparse")
    assert len(probed) == 1
    assert "from a probe of two steps" in text
    assert "6.1 CPU minutes" in text  # 5 x (36 steps x 2 s + 3 benchmarks x 4/7 s)


def test_without_its_model_here_a_plan_has_a_closed_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEPO_MODELS", str(tmp_path))
    ((_, units),) = plan_all(["language_pilot"], "smollm2", store=tmp_path / "runs")
    show_price(units, tmp_path / "runs")
    text = " ".join(capsys.readouterr().err.split())
    assert "its model is not here for a probe" in text
    assert re.search(r"24 runs, 24 to do: about [\d.]+ CPU hours, by a closed form, to a factor of four$", text)


def test_each_setting_that_does_other_work_is_probed(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight epochs cost more than two; a learning rate costs nothing. A probe's step counts for its own setting."""
    write(
        store / "experiments" / "mine.yaml",
        "title: x\nrows:\n  - {label: a, objective: grpo_dapo}\n  - {label: b, objective: gspo}\n"
        "vary: {train.epochs: [2, 8], train.learning_rate: [1e-4, 2e-4]}\n"
        "scales:\n  laptop: {models: [laptop], seeds: [0]}\n",
    )
    monkeypatch.setenv("TEPO_PATH", str(store))
    ((_, units),) = plan_all(["mine"], "laptop", store=store)
    (store / "run" / "cost.json").unlink()
    RunFolder(store / "run").add_cost(replace(COST, work=work_of(units[0].config)))  # two epochs
    probed = []

    def probe(unit: Unit) -> Cost:
        probed.append(unit.label)
        return replace(COST, training_s=4 * COST.training_s, cpu_s=149, work=work_of(unit.config))

    monkeypatch.setattr(laptop_cost, "probe", probe)
    show_price(units, store)
    text = " ".join(capsys.readouterr().err.split())
    assert probed == ["a, epochs=8, learning_rate=1e-4"]
    assert "12.7 CPU minutes" in text  # 4 x 41 s and 4 x (41 + 3 x 36) s
    assert "from medians over 1 measured run" in text
    assert text.endswith("and a probe of two steps")


def test_a_measured_base_does_not_price_training(store: Path) -> None:
    ((_, units),) = plan_all(["panel-e"], "laptop", store=store)
    base = replace(COST, objective="", steps=0, training_s=0, tokens=0)
    assert unpriced(units, [base]) == units[:1]
    assert unpriced(units, [COST]) == []


def test_laptop_runs_do_not_price_the_papers(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown("paper", store, capsys)
    assert "no price from measurements" in text
    assert "CPU" not in text
