from pathlib import Path

from tepo.reporting.tables.render import latex_text, markdown_text, render
from tepo.studies.plan import make_plan
from tepo.studies.study import parse_study
from tests.support.results import table_from_store

STUDY = """
title: Rewards
rows:
  - {{label: verdict, objective: grpo}}
  - {{label: brief, objective: grpo, overrides: ["data.reward={file}"]}}
  - {{label: noisy, objective: grpo, overrides: [data.flip_rewards=0.1]}}
scales: {{laptop: {{models: [laptop], seeds: [0], overrides: ["data.benchmarks=[add3]"]}}}}
"""


def note(folder: Path, *words: str) -> list[str]:
    """What a table of the study says on its rewards, in every form that can be published."""
    (folder / "brief.py").write_text("def reward(problem, response):\n    return len(response) < 30\n")
    path = folder / "rewards.yaml"
    path.write_text(STUDY.format(file=folder / "brief.py"))
    study = parse_study(path)
    table = table_from_store(study, make_plan(study, "laptop", store=folder / "runs", overrides=words))
    notes = [text for text in table.notes if text.startswith("Rewarded")]
    markdown, latex = (str(render(table, form)) for form in ("markdown", "latex"))
    assert all(markdown_text(text) in markdown and latex_text(text) in latex for text in notes)
    return notes


def test_a_table_says_what_was_rewarded(tmp_path: Path) -> None:
    assert note(tmp_path) == ["Rewarded, verdict, noisy: the grader's verdict.", "Rewarded, brief: reward of brief.py."]
    said = "Rewarded: the grader's verdict, reversed for 20% of the responses."
    assert note(tmp_path, "data.reward={v: grader}", "data.flip_rewards=0.2") == [said]
