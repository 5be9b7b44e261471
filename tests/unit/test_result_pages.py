from pathlib import Path

import pytest

from tests.unit.result_pages import DOCS, pages


@pytest.mark.disaster  # reads all records
def test_the_board_and_the_gains_are_what_the_records_say(tmp_path: Path) -> None:
    for name, text in pages(tmp_path).items():
        written, now = ((DOCS / name).read_text(encoding="utf-8"), text)
        if name.endswith(".svg"):  # fonts and versions move its bytes
            written, now = (picture.rpartition("<!-- chart ")[2] for picture in (written, now))
        assert written == now, f"{name}: python -m tests.unit.result_pages"
