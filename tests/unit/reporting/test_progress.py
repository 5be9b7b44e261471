"""What a person sees while several benchmarks are measured."""

import pytest

from tepo.reporting.progress import benchmark_bar


def shown(capsys: pytest.CaptureFixture[str], *reports: tuple[str, int, int]) -> str:
    with benchmark_bar(3, False) as report:
        for one in reports:
            report(*one)
    return " ".join(capsys.readouterr().err.split())


def test_the_bar_of_benchmarks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert shown(capsys) == ""
    one_after_another = shown(capsys, ("a", 0, 8), ("a", 8, 8), ("b", 0, 40), ("b", 10, 40))
    assert "1/3" in one_after_another
    assert one_after_another.endswith("b 10/40")
    together = shown(capsys, *((name, 0, 20) for name in "abc"), ("b", 20, 20), ("a", 15, 20), ("c", 15, 20))
    assert "2/3" in together, "the sum of what is done of each"
    assert together.endswith("50/60 responses, 2 benchmarks under way")
    done = shown(capsys, *((name, rows, 20) for rows in (0, 20) for name in "abc"))
    assert "3/3" in done
    assert done.endswith("c 20/20")
