"""The page as text: self-contained, well-formed, safe against what it shows, complete without JavaScript."""

import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from tepo.reporting.figures.curves import svg
from tepo.reporting.page import PageStudy, build_page, inline_svg
from tepo.reporting.page.head import Link, PageHead
from tepo.reporting.tables.table import Table
from tests.unit.reporting.pages import LONG, NASTY, page, unpacked

_VOID = {"meta", "link", "input", "br", "hr", "img"}


class _Document(HTMLParser):
    """Collects ids, texts and outside references, and checks that tags close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.outside: list[str] = []
        self.text: list[str] = []
        self.script, self.scripts = "", dict[str, str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        self.script = dict(attrs).get("id") or "" if tag == "script" else ""
        for name, value in attrs:
            if name == "id":
                self.ids[str(value)] += 1
            if name in ("href", "src", "xlink:href", "action", "poster"):
                (self.links if str(value).startswith(("#", "data:")) else self.outside).append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self.script] = self.scripts.get(self.script, "") + data
        else:
            self.text.append(data)


@pytest.fixture(scope="module")
def text(table: Table) -> str:
    return page(table)


@pytest.fixture(scope="module")
def document(text: str) -> _Document:
    parser = _Document()
    parser.feed(text)
    return parser


def test_well_formed_with_unique_ids_and_links_that_lead_somewhere(document: _Document) -> None:
    assert document.open == []
    assert [name for name, count in document.ids.items() if count > 1] == []
    links = {link[1:] for link in document.links if link.startswith("#")}
    assert links - set(document.ids) == {"run-run-1"}, "a run is drawn when it is asked for"


def test_loads_nothing_from_anywhere(text: str, document: _Document) -> None:
    assert document.outside == []
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[^\"'\s<>]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "https://github.com/leeoniya/uPlot",  # its comment of copyright
    }
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest", text)


def test_texts_cannot_break_out(text: str, document: _Document) -> None:
    assert len(document.scripts) == 7
    data = unpacked(document.scripts["token-data"])
    assert data["dumps"][1]["responses"][1]["tokens"][2] == NASTY
    assert text.count("</script>") == 7
    assert NASTY.split("\u2028")[0] in "".join(document.text)


def test_everything_is_there_without_javascript(document: _Document) -> None:
    shown = " ".join("".join(document.text).split())
    for expected in (
        "Table 3, Panel E",
        "As printed in the paper",
        "32.59",
        "tokens by class over 3 responses",
        "this objective has no mask",
        "made up",
        "Version",
        "KL(A > 0 ∧ ΔH < 0) 100% [x_y] ends above GRPO/DAPO",
        "Paper: printed there, of another model on other problems",
        "paper +1.74",
        "1 row not measured yet",
    ):
        assert expected in shown
    assert shown.count("this objective has no mask") == 1


def test_marks_of_a_kind_are_written_with_one_style() -> None:
    figure = Figure()
    for colour in ("#112233", "#445566"):
        figure.subplots().plot(range(30), "o", color=colour)
    text = inline_svg("mine", "Mine", svg(figure))
    for colour in ("#112233", "#445566"):
        (group,) = re.findall(rf'<g style="fill:{colour};[^"]*">(.*?)</g>', text)
        assert len(re.findall(r'<use href="#[^"]*" x="[\d.]+" y="[\d.]+"/>', group)) == 30
        assert "style" not in group


def test_curves_are_there_as_numbers_and_as_a_drawing_with_the_licence_of_what_draws_them(
    text: str, document: _Document
) -> None:
    first, second = (unpacked(document.scripts[f"data-figure-{name}"]) for name in ("first", "second"))
    assert first == second
    assert first["rows"][1]["label"] == "TEPO"
    assert first["rows"][1]["curves"][0] == [[10, 20, 30]]
    assert text.count('<svg class="drawn" role="img"') == 2
    assert text.count("<svg role=") == 1
    assert "The MIT License (MIT)" in "".join(document.text)
    assert "Leon Sorokin" in "".join(document.text)


def test_a_table_is_copied_to_a_paper_as_its_tabular(document: _Document) -> None:
    latex = unpacked(document.scripts["table-texts"])["table-panel_e"]["LaTeX"]
    assert latex.startswith(r"\begin{tabular}{l")
    assert latex.endswith(r"\end{tabular}")
    assert "documentclass" not in latex


def test_a_row_has_the_settings_that_are_not_usual(document: _Document) -> None:
    data = unpacked(document.scripts["run-data"])
    assert data["usual"] == {"objective.name": "grpo_dapo", "train.steps": "4"}
    assert [row["settings"] for row in data["rows"]] == [{}, {"objective.name": "tepo"}]
    assert data["rows"][1]["seeds"] == [[1, "run-2", {"steps": 4}, False]]


def test_data_holds_the_worked_out_mask_and_short_numbers(document: _Document) -> None:
    plain, _, masked = unpacked(document.scripts["token-data"])["dumps"]
    assert (plain["applied"], masked["applied"]) == (False, True)
    assert plain["responses"][0]["values"]["mask"] == masked["responses"][0]["values"]["mask"]
    assert 0.3 in plain["responses"][0]["values"]["entropy"]


def test_samples_are_there_with_what_was_left_out(text: str, document: _Document) -> None:
    data = unpacked(document.scripts["samples"])
    assert [label for _, label in data["runs"]] == [f"{LONG}, seed 0", "TEPO, seed 1"]
    benchmark, problem, prompt, gold, answers, picked = data["problems"][0]
    assert (benchmark, problem, prompt, gold) == ("add3", "add3-0", "1+2=", "3")
    assert answers == [["3", "3", True, "exact", 1, True], ["4", "4", False, "different", 1, True]]
    assert picked == [[[0, 2]], [[1, 1], [0, 1]]]
    shown = " ".join("".join(document.text).split())
    assert "4 of 4 benchmark problems, with all their stored responses, of 2 runs; 1 further run is left out" in shown
    assert "tepo responses RUN BENCHMARK" in shown


def test_the_same_page_has_the_same_bytes(table: Table, text: str) -> None:
    assert page(table) == text


def test_a_link_shows_title_text_and_picture(table: Table) -> None:
    address = "https://example.org/results.png"
    link = Link("https://example.org/results.html", address, 'A "finding" <here>', "What was run")
    linked = build_page(PageHead("Title", link=link), [PageStudy(table)], [])
    assert '<meta property="og:title" content="A &#34;finding&#34; &lt;here&gt;">' in linked
    assert f'<meta property="og:image" content="{address}">' in linked
    assert 'property="og:' not in build_page(PageHead("Title"), [PageStudy(table)], [])


def test_empty_page_and_dump_limit(table: Table) -> None:
    empty = build_page(PageHead("Nothing yet"), [], [])
    assert "<h1>Nothing yet</h1>" in empty
    assert 'id="tokens"' not in empty
