from pathlib import Path

import pytest

from tepo.analysis.page import page, parts, render_all
from tepo.studies.planned_facts import read_facts
from tepo.studies.record_runs import plan_by_folder, recorded_names
from tests.unit.reporting.chromium import chromium

pytestmark = [pytest.mark.chromium, pytest.mark.slow, pytest.mark.disaster]

BYTES = 4_500_000  # of every seed and every paper on record, since `--records` shows all of them


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    plans = plan_by_folder(recorded_names("laptop"), "laptop", folder / "runs").values()
    planned, facts = read_facts([part for plan in plans for part in plan], records=True)
    reported: list[float] = []
    text = page(render_all(planned, facts, lambda done, note: reported.append(done)))
    assert reported == list(range(1, parts(planned) + 1))
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_page_of_all_records_is_small_and_draws_what_stands_open(path: Path) -> None:
    assert path.stat().st_size <= BYTES
    with chromium() as window:
        window.open(path)
        window.ready()
        assert window.all(".chart-wrapper svg"), "what stands open is drawn"
        assert window.all("details:not([open]) .chart svg") == [], "what is folded is drawn when it is opened"
        assert window.console() == []
