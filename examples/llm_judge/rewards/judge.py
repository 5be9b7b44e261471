"""A language model behind an OpenAI-compatible address as the judge: it reads the problem, the rubric of its row and a
response, and ends with a number from 0 to 10.

    export JUDGE_URL=http://localhost:8000/v1 JUDGE_MODEL=NAME        # JUDGE_KEY=… where the server asks for one
    export JUDGE_PRICES=0.15,0.60                                     # USD a million tokens, read and written
    cd examples/llm_judge
    tepo train data=rows.csv data.columns='[rubric]' data.reward=rewards/judge.py model=NAME

All responses of a group are asked at once. What was judged is kept in `judge_cache/` and asked once, also by the next
run. `reward/judge/tokens`, `reward/judge/usd` and `reward/judge/asked` are means over the responses of a step.
"""

import asyncio
import hashlib
import json
import os
import re
import tempfile
import urllib.request
from pathlib import Path

SECONDS = 20  # for an answer; beyond, the response counts as failed
CACHE = Path(os.environ.get("JUDGE_CACHE", "judge_cache"))
ASK = """Judge a response by a rubric.

Problem: {problem}
Rubric: {rubric}
Response: {response}

End with a line "Score: N", N from 0 (useless) to 10 (perfect)."""


def ask(request):
    """Ask the server: its text, and the tokens read and written."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('JUDGE_KEY', 'none')}"}
    address = os.environ["JUDGE_URL"].rstrip("/") + "/chat/completions"
    post = urllib.request.Request(address, json.dumps(request).encode(), headers)
    with urllib.request.urlopen(post, timeout=SECONDS) as reply:
        said = json.load(reply)
    usage = said["usage"]
    return {
        "text": said["choices"][0]["message"]["content"],
        "tokens": [usage["prompt_tokens"], usage["completion_tokens"]],
    }


def judged(request):
    """The answer to a request and whether the server was asked: of the cache where it is there."""
    name = hashlib.sha256(json.dumps([os.environ["JUDGE_URL"], request]).encode()).hexdigest()
    file = CACHE / f"{name}.json"
    if file.exists():
        return json.loads(file.read_text()), False
    answer = ask(request)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=CACHE, delete=False) as whole:
        json.dump(answer, whole)
    os.replace(whole.name, file)
    return answer, True


async def reward(problem, response):
    rubric = problem.columns.get("rubric", "the answer is right")
    text = ASK.format(problem=problem.prompt, rubric=rubric, response=response)
    request = {
        "model": os.environ["JUDGE_MODEL"],
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 200,
    }
    answer, asked = await asyncio.to_thread(judged, request)
    scores = re.findall(r"Score: *(\d+)", answer["text"])
    read, written = map(float, os.environ.get("JUDGE_PRICES", "0,0").split(","))
    usd = (answer["tokens"][0] * read + answer["tokens"][1] * written) / 1e6
    return {
        "reward": min(10, int(scores[-1])) / 10 if scores else 0.0,
        "tokens": sum(answer["tokens"]) if asked else 0,
        "usd": usd if asked else 0.0,
        "asked": asked,
    }
