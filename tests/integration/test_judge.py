"""The example of a judge, asked over HTTP at vLLM's own OpenAI-compatible server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tepo.common.paths import PACKAGE
from tests.integration.openai_server import openai_server
from tests.integration.own_model import make_tokenizer, save_taught
from tests.support.commands import tepo
from tests.support.runs import SMALL, lasting

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.disaster]
EXAMPLE = PACKAGE.parent / "examples" / "llm_judge"
VERDICT = "Score: 7"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a model that says `Score: 7`, whatever it is asked."""
    folder = tmp_path_factory.mktemp("judge")
    rubric = "Judge a response by a rubric.\n\nProblem: {0}+{0}=\nRubric: sum\nResponse: {1}"
    asked = [rubric.format(n, 2 * n) for n in range(10, 40)]
    tokenizer = make_tokenizer([*asked, VERDICT], chat=True)
    save_taught(folder, tokenizer, "qwen2", asked, [VERDICT], 60, max_position_embeddings=1024)
    with openai_server(folder, "judge", "--max-model-len", "1024") as url:
        yield url


def test_a_model_behind_an_address_judges_each_response_once(tmp_path: Path, address: str) -> None:
    """Its rewards are trained on beside another's; what it said is kept for the next run."""
    rows = "".join(f"{n}+{n}=,the sum of two equal numbers\n" for n in range(10, 18))
    (tmp_path / "rows.csv").write_text(f"question,rubric\n{rows}")
    (tmp_path / "brief.py").write_text("def reward(problem, response):\n    return max(0.0, 1 - len(response) / 60)\n")
    rewards = f"data.reward={{judge: {{file: judge}}, brief: {{file: {tmp_path / 'brief.py'}}}}}"
    known = {"TEPO_PATH": str(EXAMPLE), "JUDGE_URL": address, "JUDGE_MODEL": "judge", "JUDGE_PRICES": "1,2"}
    words = (*SMALL, "data=rows.csv", "data.columns=[rubric]", rewards, "train.steps=1", "train.max_new_tokens=8")
    runs = []
    for store in ("first", "second"):
        tepo("train", *words, f"store={store}", cwd=tmp_path, JUDGE_CACHE=str(tmp_path / "cache"), **known)
        (run,) = (path.parent for path in tmp_path.glob(f"{store}/*/config.json"))
        runs.append(lasting(run)[0])
    first, second = runs
    assert first["reward/judge/mean"] == second["reward/judge/mean"] == pytest.approx(0.7, abs=1e-6)
    assert first["reward/failed"] == second["reward/failed"] == 0
    assert first["reward/judge/asked"] > 0 == second["reward/judge/asked"] == second["reward/judge/usd"]
    assert first["reward/judge/tokens"] / 1e6 < first["reward/judge/usd"] < 2 * first["reward/judge/tokens"] / 1e6
    assert list((tmp_path / "cache").glob("*.json"))
