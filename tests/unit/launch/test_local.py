from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.launch.local import command
from tepo.store.run_folder import RunFolder
from tepo.studies.plan_studies import plan_all
from tepo_cli.train_run import compose_one


def test_the_command_of_a_base_names_it(tmp_path: Path) -> None:
    ((_, (base, *_)),) = plan_all(["table1"], "laptop", store=tmp_path, overrides=["data.benchmarks=[add3]"])
    assert base.row.base
    *_, option, store, model = command(base)
    run, trained = compose_one(model.removeprefix("--model="), Path(store))
    assert (option, trained, RunFolder.of_base(run.config)) == ("--store", False, base.folder)


@pytest.mark.parametrize("words", ["", "gspo", "'train seed=1"])
def test_words_that_are_no_run(words: str) -> None:
    with pytest.raises(UserError, match="run"):
        compose_one(words, None)
