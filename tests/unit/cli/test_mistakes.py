"""Called in this process, as a process each takes seconds."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tepo.common.errors import UserError
from tepo.config.compose import compose
from tepo.jobs.weights import Weights, tokenizer_of
from tepo.store.run_folder import RunFolder
from tepo.studies.plan_studies import plan_all
from tepo_cli.commands.evaluate import evaluate
from tepo_cli.commands.studies import ablate, plan, reproduce
from tepo_cli.commands.tables import figure, report, table
from tepo_cli.commands.train import train
from tepo_cli.main import app
from tepo_cli.show_scores import find_target
from tests.support.commands import tepo
from tests.support.results import finish
from tests.support.runs import write
from tests.unit.store.test_store_check import WORDS

UNTRAINABLE = {
    "objective.betta=1": "'beta'",
    "train.max_new_tokens=100000": "the model has 256 positions",
    "data.tasks.foo=1": "unknown task 'foo'",
}
BASES = ["package:laptop", "package:laptop_sparse"]


def training(word: str, dry_run: bool) -> Callable[[Path], Any]:
    return lambda store: train([word, f"store={store}"], dry_run=dry_run)


def called(*words: str) -> Callable[[Path], Any]:
    """A command as a user types it, with its store."""
    return lambda store: CliRunner().invoke(app, [*words, "--store", str(store)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (called("ablate", "panel-x"), "panel_"),
        (called("table", "panel-q"), "panel_"),
        (called("ablate", "panel-e", "--scale", "labtop"), "'laptop'"),
        (called("ablate", "panel-e", "--slurm", "minutes=5"), "add --launcher slurm"),
        (called("ablate", "panel-e", "--seeds", "a,b"), "not a list of seeds"),
        (called("list", "--watch"), "no such folder"),
        (called("eval", "ad3", "--model", "package:laptop"), "add3"),
        (called("eval", "add3", "--model", "nowhere/at/all"), "no model"),
        (called("explain", "tepo", "gspo"), "--vs NAME"),
        *((training(word, dry), hint) for word, hint in UNTRAINABLE.items() for dry in (False, True)),
        (lambda store: ablate("panel-e", store=store, override=["objective.hgih=1"]), "row 'GRPO/DAPO'"),
        (lambda store: ablate("panel-e", store=store, override=["objective.hgih=1"], dry_run=True), "row 'GRPO/DAPO'"),
        (lambda store: plan(["panel-e"], store=store, override=["objective.hgih=1"]), "row 'GRPO/DAPO'"),
        (lambda store: ablate("panel-e", store=store, format="pdf"), "unknown format 'pdf'"),
        (lambda store: ablate("panel-e", store=store, launcher="slurn", dry_run=True), "'slurm'"),
        (lambda store: table("panel-e", store=store), "--records"),
        (lambda store: figure("2a", store=store), "--records"),
        (lambda store: figure("2a", store=store, format="pgf"), "unknown format 'pgf'"),
        (lambda store: figure("panel-e", store=store, against="sample"), "'samples'"),
        (lambda store: figure("gtpo-5", store=store), "'gtpo-1'"),
        (lambda store: report(["panel-e"], store=store), "--records"),
        (lambda store: report(None, store=store), "--records"),
        (lambda store: evaluate(["base seed=1"], ["add3"], store=store), "a benchmark with a configuration"),
        (lambda store: evaluate(["base seed=1"], store=store, limit=3, seed=1), "--limit and --seed with a conf"),
        (lambda store: evaluate(["base", "package:laptop"], store=store), "another kind of model with a conf"),
        (lambda store: evaluate(["package:laptop"], store=store), "no benchmark to evaluate on"),
        (lambda store: evaluate(BASES, ["add3"], store=store, out=store), "in: --out"),
        (lambda store: evaluate(BASES, ["add3"], store=store, revision="main"), "in: --revision"),
    ],
)
def test_a_mistake_leaves_nothing_on_disk(call: Callable[[Path], Any], hint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        call(tmp_path / "runs")
    assert caught.value.exit_code == 2
    assert hint in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [report, reproduce])
@pytest.mark.parametrize("option", ["out", "results"])
def test_a_folder_in_the_place_of_the_page_is_said_before_the_work(
    call: Callable[..., Any], option: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError) as caught:
        call(["panel-e"], store=tmp_path / "runs", **{option: tmp_path / "folder"})
    assert caught.value.exit_code == 2
    assert caught.value.fix.startswith(f"--{option} {tmp_path / 'folder'}/report.")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder"]


def test_what_cannot_be_written_names_its_own_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ((_, units),) = plan_all(["panel-e"], "laptop", store=tmp_path, overrides=WORDS)
    finish(units[1], 0.5)
    with pytest.raises(UserError) as caught:
        report(["panel-e"], store=tmp_path, override=list(WORDS), out=tmp_path / "file" / "page.html")
    assert caught.value.fix == "choose another place with --out FILE"


def test_figure_all_draws_what_can_be_drawn_and_names_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ((_, units),) = plan_all(["figures"], "laptop", store=tmp_path, overrides=WORDS)
    for unit in units:
        if unit.row.label in ("GRPO/DAPO", "TEPO"):  # the rows of figures 2a to 3b
            metrics = ("actor/pg_clipfrac", "timing_s/step", "critic/score/mean", "actor/grad_norm")
            finish(unit, 0.5, **dict.fromkeys(metrics, 0.5))
    with pytest.raises(UserError) as caught:
        figure("all", store=tmp_path, override=list(WORDS), out=tmp_path / "figures")
    assert caught.value.exit_code == 1
    assert caught.value.what.startswith(
        "6 of 10 figures were not drawn:\n"
        "  figure v1-4 needs rows that were not run: TEPO-w/o. KL, w. KL on all tokens, w. Max-Entropy\n"
    )
    drawn = [f"figure-{name}.svg" for name in ("2a", "2b", "3a", "3b")]
    assert [Path(line).name for line in capsys.readouterr().out.split()] == drawn
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(drawn)


def test_in_a_process_a_mistake_is_one_message(tmp_path: Path) -> None:
    done = tepo("train", "train.stepz=3", cwd=tmp_path, code=2)
    assert "train.steps" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_of_tepo_path_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEPO_PATH", str(tmp_path / "typo"))
    with pytest.raises(UserError, match="no such folder"):
        table("panel-e", store=tmp_path)


def test_a_model_that_is_not_in_the_cache_is_no_misspelt_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEPO_MODELS", str(tmp_path))
    for name in ("smollm2-135m-wordings", "of-mine"):
        with pytest.raises(UserError, match=r"^that model is not in the cache") as refused:
            tokenizer_of(Weights.of_base(f"cache:{name}", None))
        assert refused.value.fix == f"tepo model fetch {name}"


def test_a_run_to_evaluate_that_is_not_there_or_not_whole(tmp_path: Path) -> None:
    run = tmp_path / "0123456789ab"
    write(run / "config.json", "[]")

    def refused(model: str, message: str, store: Path = tmp_path) -> None:
        with pytest.raises(UserError, match=message):
            find_target(model, store, None)

    refused("0123456789ac", "no model and no run .*\n.*\n.*did you mean '0123456789ab'")  # the network is not asked
    refused(str(tmp_path / "0123456789ac"), "no model and no run")
    refused("runs/0123456789ac", "no model and no run", Path("runs"))
    (run / "checkpoints").mkdir()
    refused(run.name, "another version")
    (run / "config.json").unlink()
    refused(run.name, "no configuration")
    shutil.rmtree(run)
    for name in ("0123456789ab", "0199999999ab"):
        folder = RunFolder(tmp_path / name)
        folder.create(compose([f"store={tmp_path}"]), {})
        folder.mark("running")
    refused("01", "2 runs begin with '01'")
    refused("0123", "0123456789ab")  # found, and it has no checkpoint


@pytest.mark.parametrize(
    "words", [("reproduce", "panel-a", "--records", "--scale", "paper"), ("records", "write", "panel-a"), ("report",)]
)
def test_where_nothing_was_measured_nothing_is_written(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "report.html").write_text("mine")
    assert "error: no" in tepo(*words, cwd=tmp_path, code=2).stderr
    assert (tmp_path / "report.html").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs"]
