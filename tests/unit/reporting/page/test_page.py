import gzip
import re
from base64 import b64decode
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tepo.formula.row import load_row
from tepo.reporting.page import PageContent, PageHead, PageStudy, build_page
from tepo.reporting.page.equations import methods
from tepo.reporting.page.runs import PageRun, run_rows
from tepo.reporting.tables.table import VERDICT, Cell, Table, TableBlock
from tests.unit.reporting.pages import LONG, NASTY, charts, page, unpacked

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


def test_each_formula_stands_once_with_its_constants() -> None:
    row = load_row("tepo")
    rows = {"TEPO": row, "again": row, "β = 1": row.changed({"beta": 1}), "GSPO": load_row("gspo")}
    first, second, third = methods([(label, None, one) for label, one in rows.items()])
    assert (first["label"], second["label"], third["label"]) == ("TEPO", "β = 1", "GSPO")
    assert all(line.startswith("<math") and "\\" not in line for line in (*first["shown"], *third["lines"]))
    assert "<mn>0.001</mn>" in first["said"]
    assert "<mn>1</mn>" in second["said"]
    assert (second["unlike"], second["shown"], len(second["settings"])) == ("TEPO", [], 1)
    assert "$" not in first["said"]
    assert first["departs"]


def test_two_methods_with_one_J_show_what_tells_them_apart() -> None:
    rows = [load_row(name) for name in ("grpo_dapo", "lite_ppo", "dr_grpo")]
    lite, base, dr = methods([(row.name, None, row) for row in (rows[1], rows[0], rows[2])])
    assert (base["unlike"], base["settings"], base["lines"]) == ("", [], []), "shown whole"
    assert [made["unlike"] for made in (lite, dr)] == ["grpo_dapo"] * 2
    assert [len(made["shown"]) for made in (lite, dr)] == [1, 2], "J with another average is another J"
    assert base["shown"][0] not in (*lite["shown"], *dr["shown"])
    for made in (lite, dr):
        assert len(made["settings"]) == 1
        assert made["settings"][0].endswith("<mo>&#x0003D;</mo><mn>0.2</mn></mrow></math>"), (
            "as a sign of the equations"
        )
    by_label = methods([(row.name, None, row) for row in rows], "dr_grpo")
    assert [made["unlike"] for made in by_label] == ["dr_grpo", "dr_grpo", ""], "the baseline of the page"


def test_an_equation_with_cases_has_no_word_of_tex() -> None:
    row = load_row("grpo_dapo").changed({"A": "where(R < 0.5, R/2, R)"})
    (made,) = methods([("mine", None, row)])
    assert any("else" in line for line in made["shown"])
    assert not any("1ex" in line for line in made["shown"])


def test_a_page_has_no_words_for_what_is_not_there(table: Table) -> None:
    """Terms of the pictures that are there; of a single seed there is neither interval nor p."""
    differences = charts()[0]
    few = replace(table, blocks=(one_seed(table.blocks[0]),))
    both, without = (PageContent(PageHead("t"), [PageStudy(each)], pictures=[differences]) for each in (table, few))
    assert list(both.terms) == ["Points", "Line", "p"]
    assert list(without.terms) == ["Points"]
    assert not PageContent(PageHead("t"), [PageStudy(table)]).terms
    empty = build_page(PageContent(PageHead("t"), [PageStudy(table)]))
    assert "Vega" not in empty.partition("<script")[0]
    assert 'id="method"' not in empty


def one_seed(block: TableBlock) -> TableBlock:
    """The rows as of one seed."""
    kinds = [column.key for column in block.columns]
    cells = {"delta": lambda cell: Cell(cell.mean), VERDICT: lambda cell: Cell(text="1 seed: no verdict")}
    rows = (
        replace(
            row,
            cells=tuple(cells.get(kind, lambda cell: cell)(cell) for kind, cell in zip(kinds, row.cells, strict=True)),
        )
        for row in block.rows
    )
    return replace(block, rows=tuple(rows))


def test_runs_stand_by_their_settings_of_which_the_unusual_are_named() -> None:
    runs = [
        PageRun(f"{n}", label, "tepo", seed, {"seed": seed, "objective": {"constants": {"beta": beta}}}, f"fact {n}")
        for n, (label, seed, beta) in enumerate((("A", 0, 1.0), ("A", 1, 1.0), ("A", 0, 2.0), ("B", 0, 1.0)))
    ]
    usual, other, last = run_rows(runs)
    assert usual["seeds"] == [(0, "0", "fact 0"), (1, "1", "fact 1")]
    assert (usual["settings"], other["settings"], last["settings"]) == ("", "objective.beta=2.0", "")
