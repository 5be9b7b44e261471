import gzip
import json
import random
import re
from base64 import b64decode
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tepo.common.errors import UserError
from tepo.reporting.page.page_data import RunSamples, pack_samples
from tepo.reporting.tables.table import Table
from tepo.store.samples_file import GradedResponse, ProblemAnswers
from tepo.store.stored_tokens import read_dump
from tests.support.runs import write
from tests.unit.reporting.pages import LONG, NASTY, page, samples, unpacked

HEAD = ("title", "made", "asked", "ran", "cost", "caveat", "repeat", "note", "source", "linked")
HOSTILE = (*HEAD, "below", "lacks", "row", "differences", "curves", "map", "outcome", "command", "tepo", "GRPO/DAPO")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:"


class Document(HTMLParser):
    """Collects ids, links, packed parts and texts, and checks that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.packed: dict[str, str] = {}
        self.texts: list[str] = []
        self.feed(text)
        self.shown = " ".join("".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        self.id = dict(attrs).get("id") or ""
        self.ids.update([self.id] * bool(self.id))
        self.links += [str(value) for name, value in attrs if name in ("href", "src", "xlink:href", "action", "poster")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["script"]:
            self.texts.append(data)
        elif self.id:
            self.packed[self.id] = data


@pytest.fixture(scope="module")
def text(table: Table) -> str:
    return page(table)


@pytest.fixture(scope="module")
def document(text: str) -> Document:
    return Document(text)


@pytest.fixture(scope="module")
def listed(document: Document) -> Document:
    """The list of runs, which the script puts into the page."""
    return Document(gzip.decompress(b64decode(document.packed["run-rows"])).decode())


def test_is_well_formed_and_loads_nothing(text: str, document: Document, listed: Document, table: Table) -> None:
    assert document.open == listed.open == []
    ids = document.ids + listed.ids
    assert max(ids.values()) == 1
    loaded, *followed = [link for link in document.links if link[1:] not in ids]
    assert loaded == "data:,"
    assert followed == ["https://arxiv.org/abs/2503.14476", f"https://huggingface.co/{NASTY}"]
    rest = re.sub(r'<a href="https://', "", text)  # to follow is not to load
    assert f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">' in text
    spaces = {f"http://www.w3.org/{name}" for name in ("2000/svg", "1999/xlink", "1998/Math/MathML")}
    assert set(re.findall(r"https?://[^\"'\s<>]+", rest)) <= spaces
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest", text)
    assert page(table) == text


def test_a_strangers_text_is_text_everywhere(text: str, document: Document, listed: Document) -> None:
    assert text.count("<script") == text.count("</script>") == len(document.packed) + 1
    assert "<b title" not in text
    shown = document.shown + listed.shown
    assert [word for word in HOSTILE if f"{word} {NASTY}" not in shown] == []
    names = ("samples", "token-data", "data-panel_e-map")
    samples, tokens, cells = (unpacked(document.packed[name]) for name in names)
    assert tokens["dumps"][1]["responses"][1]["tokens"][2] == samples["problems"][2][4][0][0] == NASTY
    assert LONG in next(iter(cells["datasets"].values()))[0].values()


@pytest.mark.parametrize("share", [1.0, 0.2])
def test_the_first_problems_of_each_benchmark_with_the_answers_of_every_run(share: float) -> None:
    draw = random.Random(7)

    def problem(name: str) -> ProblemAnswers:
        return ProblemAnswers(name, "1=", "1", (GradedResponse(f"{draw.getrandbits(400):x}", "1", True, "", 1, True),))

    given = [
        RunSamples(run, run, {name: [problem(f"{name}-{at}") for at in range(100)] for name in ("add3", "gcd")})
        for run in ("a", "b", "c")
    ]
    budget = int(share * len(pack_samples(given)["text"]))
    packed = pack_samples(given, budget)
    assert (packed["total"], packed["runs"], packed["left_out"]) == (200, 3, 0)
    assert packed["shown"] == 200 if share == 1 else 0 < packed["shown"] < 200
    assert len(packed["text"]) <= budget
    entries, half = unpacked(packed["text"])["problems"], packed["shown"] // 2
    assert [entry[1] for entry in entries] == [f"{name}-{at}" for name in ("add3", "gcd") for at in range(half)]
    assert all(len(picked) == 3 and all(picked) for *_, picked in entries)
    assert pack_samples(given, budget) == packed


def test_equal_answers_are_kept_once_and_runs_without_any_are_left_out() -> None:
    packed = pack_samples(samples())
    assert (packed["runs"], packed["left_out"], packed["shown"]) == (2, 1, 4)
    right, wrong = ["3", "3", True, "", 1, True], [[text, text, False, "different", 1, True] for text in "49"]
    first = ["add3", "add3-0", "1+2=", "3", [right, *wrong], [[[0, 2]], [[1, 1], [2, 1]]]]
    assert unpacked(packed["text"])["problems"][0] == first
    only = [RunSamples(one.id, one.label, dict(list(one.benchmarks.items())[at:])) for at, one in enumerate(samples())]
    assert unpacked(pack_samples(only[:2])["text"])["problems"][0][5] == [[[0, 2]], None]
    assert pack_samples([])["shown"] == 0


def dump(tokens: list[str], **values: list) -> dict:
    """Of one response."""
    asked = {"prompt": "12+34=", "answer": "46", "reward": 1.0, "finished": True, "group": 0}
    responses = [{**asked, "tokens": tokens, "values": values}]
    return {"format": 1, "step": 4, "objective": "tepo", "responses": responses}


def test_reads_what_the_loop_writes(tmp_path: Path) -> None:
    path = write(tmp_path / "step_000004.json", json.dumps(dump(["4", "ö"], entropy=[0.25, float("nan")])))
    read = read_dump(path)
    assert (read.step, read.objective, len(read.responses)) == (4, "tepo", 1)
    assert read.responses[0].values == {"entropy": [0.25, None]}
    with pytest.raises(UserError, match="cannot read"):
        read_dump(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("[" * 100_000, ""),
        (json.dumps({"format": 9, "responses": []}), "found 9"),
        (json.dumps(dump(["1", "2"], entropy=[0.1])), "'entropy' does not have 2 numbers"),
        (json.dumps(dump(["1"], entropy=["a lot"])), ""),
        (json.dumps(dump(["\ud800"])), ""),
    ],
    ids=range(5),
)
def test_damaged_dumps_are_named(tmp_path: Path, data: str, message: str) -> None:
    path = write(tmp_path / "step_000004.json", data)
    with pytest.raises(UserError, match=f"not a token dump.*{message}") as caught:
        read_dump(path)
    assert caught.value.where == str(path)
