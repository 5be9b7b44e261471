"""Which runs of a sweep are quoted: by rule, on made-up accuracies."""

from tepo.studies.fallen import SweepRun, fallen

ROWS = {  # accuracy at the small and at the large rate, of three seeds
    "stands": (0.7, (0.5, 0.5, 0.5)),
    "loses most": (0.9, (0.02, 0.0, 0.01)),
    "loses least": (0.6, (0.03, 0.01, 0.02)),
    "between": (0.7, (0.0, 0.0, 0.0)),
}


def sweep(values: tuple[str, str] = ("1e-4", "1e-3"), grid: tuple[str, ...] = ("laptop",)) -> list[SweepRun]:
    small, large = values
    return [
        SweepRun(f"{row}-{value}-{seed}", grid, row, value, seed, accuracy, value == large and row != "stands")
        for row, (low, high) in ROWS.items()
        for value, accuracies in ((small, (low,) * 3), (large, high))
        for seed, accuracy in enumerate(accuracies)
    ]


def test_the_rows_that_lose_least_and_most_give_their_median_run() -> None:
    assert fallen(sweep()) == ["loses least-1e-3-2", "loses most-1e-3-2"]


def test_the_largest_value_at_which_a_run_fell_counts_as_a_number() -> None:
    assert fallen(sweep(("9e-4", "1e-3"))) == ["loses least-1e-3-2", "loses most-1e-3-2"]
    assert fallen(sweep(("9", "10"))) == ["loses least-10-2", "loses most-10-2"]
    at_both = [SweepRun("a-small", ("laptop",), "between", "1e-4", 9, 0.7, True), *sweep()]
    assert fallen(at_both) == ["loses least-1e-3-2", "loses most-1e-3-2"]


def test_of_two_runs_the_lower_and_of_equal_ones_the_first_seed() -> None:
    two = [run for run in sweep() if run.row == "loses most" and run.seed != 2]
    assert fallen(two) == ["loses most-1e-3-1"], "the one row loses most and least"
    assert fallen([run for run in sweep() if run.row == "between"]) == ["between-1e-3-1"]


def test_only_runs_that_fell_are_taken_and_values_without_an_order_are_not() -> None:
    assert fallen([run for run in sweep() if run.row == "stands"]) == []
    assert fallen(sweep(("narrow", "wide"))) == []
    assert fallen([]) == []


def test_every_grid_has_its_own() -> None:
    other = [run for run in sweep(grid=("laptop", "warm")) if run.row != "loses most"]
    assert fallen([*sweep(), *other]) == ["loses least-1e-3-2", "loses most-1e-3-2", "between-1e-3-1"]
