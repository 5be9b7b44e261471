from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.studies.plan import make_plan
from tepo.studies.study import load_study, parse_study, printed
from tests.support.runs import write

GUIDE = (Path(__file__).parents[3] / "docs/studies.md").read_text().partition("## A paper: two files")[2]
STUDY, FIGURES = GUIDE.partition("```yaml\n")[2].partition("```")[0], GUIDE.partition("\n```\n#")[2].partition("```")[0]


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the guide's paper, added as a stranger adds it."""
    monkeypatch.setenv("TEPO_PATH", str(tmp_path))
    folder = tmp_path / "experiments/papers/my_paper"
    write(folder / "study.yaml", STUDY)
    write(folder / "printed.csv", f"#{FIGURES}")
    return folder


def test_the_paper_of_the_documents_is_a_study_at_all_scales(paper: Path) -> None:
    study = load_study("my-paper")
    runs = {scale: len(make_plan(study, scale, store=paper)) for scale in ("laptop", "single_gpu", "paper")}
    assert runs == {"laptop": 6, "single_gpu": 2, "paper": 2}
    figures = [printed(study, model, row) for model in ("laptop", "qwen2.5-32b") for row in study.rows]
    assert [row.average for row in figures if row] == [30, 50, 30, 50]


def test_a_row_that_the_paper_prints_for_other_models_alone_has_no_figures(paper: Path) -> None:
    write(paper / "printed.csv", f"#{FIGURES}naive_grpo,Qwen2.5-7B,Naive GRPO,20\n")
    text = STUDY.replace("[qwen2.5-32b]", "[qwen2.5-7b, qwen2.5-32b]").replace(
        "models: {", "models: {qwen2.5-7b: Qwen2.5-7B, "
    )
    write(paper / "study.yaml", text)
    study = parse_study(paper / "study.yaml")
    naive, dapo = (printed(study, "qwen2.5-7b", row) for row in study.rows)
    assert naive is not None
    assert (naive.average, dapo) == (20, None)
    write(paper / "study.yaml", text.replace("dynamic_sampling", "dynamic_sampilng"))
    with pytest.raises(UserError, match="dynamic_sampilng"):
        parse_study(paper / "study.yaml")
