import time
from pathlib import Path

from tepo.studies.plan import make_plan, unique
from tepo.studies.study import load_study


def test_planning_ten_thousand_runs(tmp_path: Path) -> None:
    study = load_study("panel-e")
    make_plan(study, "laptop", store=tmp_path)  # the five compositions, shared by all seeds

    def planning(seeds: int) -> float:
        started = time.process_time()
        units = make_plan(study, "laptop", store=tmp_path, seeds=range(seeds))
        todo = [unit for unit in unique(units) if not unit.done()]
        assert len(todo) == 5 * seeds
        return time.process_time() - started

    spent = planning(2000)
    assert spent < 2 or spent < 15 * planning(200)
