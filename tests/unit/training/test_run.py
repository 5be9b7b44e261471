from tepo.config.compose import compose
from tepo.store.run_folder import RunFolder
from tepo.training.run import Run


def test_a_layout_that_is_chosen_changes_neither_id_nor_objective() -> None:
    run = Run(compose(["scale=single_gpu", "data=laptop", "model=laptop"]))
    laid_out = run.having("engine.zero_stage", 3).having("sampler.max_rows", 64)
    assert (laid_out.get("engine.zero_stage"), laid_out.get("sampler.max_rows"), laid_out.asked) == (3, 64, run)
    assert laid_out.folder is run.folder
    assert laid_out.objective is run.objective
    assert run.folder == RunFolder.of(run.config)
