"""Without a hub."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from tepo.common.errors import UserError
from tepo.studies.fetch_inputs import fetch_inputs
from tepo.studies.plan import Unit
from tepo.studies.plan_studies import plan_all


def units(scale: str, *overrides: str) -> list[Unit]:
    planned = plan_all(["panel_e"], scale, store=Path("nowhere"), overrides=overrides)
    return [unit for _, units in planned for unit in units]


@pytest.mark.parametrize("offline", [True, False])
def test_a_silent_hub_ends_it_before_anything(offline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEPO_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    said: list[str] = []
    reason = "HF_HUB_OFFLINE is set" if offline else r"http://127.0.0.1:9 does not answer \(.+\)"
    with pytest.raises(UserError, match=rf"^nothing is fetched: {reason}\n(?s:.*)HF_ENDPOINT") as ended:
        fetch_inputs(units("paper"), said.append)
    assert (ended.value.exit_code, said, list(tmp_path.iterdir())) == (2, [], [])


def test_what_ships_or_is_generated_asks_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said: list[str] = []
    fetch_inputs(units("laptop"), said.append)
    (line,) = said
    assert line.startswith("package:laptop: there already, ")
    (tmp_path / "own.jsonl").write_text('{"id": "one", "problem": "1+1=", "answer": "2"}\n')
    fetch_inputs(units("laptop", f"data={tmp_path}/own.jsonl", "data.benchmarks=[add3]"), said.append)
    assert said[-1] == f"{tmp_path}/own.jsonl: 1 problem"


def test_a_model_that_nobody_fetched_or_made_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEPO_MODELS", str(tmp_path))
    with pytest.raises(UserError, match=r"^not fetched: cache:smollm2-135m-words; (?s:.*)tepo model warmstart"):
        fetch_inputs(units("small_lm"), lambda line: None)
