"""First lines of the page: what was found, what ran, and what results like these can say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Link:
    """A link to the page as others show it: where the page and its picture stand, title and text."""

    url: str
    picture: str
    title: str
    text: str


@dataclass(frozen=True)
class PageHead:
    """title: what the page is about. ran: what was run, in a sentence that a stranger understands. finding: what was
    found; empty: the headline of the first study. facts: about the runs, name and value. notes: from the file of a
    study. scope: what results at this scale can say and what they cannot. command: makes the page. link: None where it
    is not known where the page will stand."""

    title: str
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    scope: str = ""
    ran: str = ""
    finding: str = ""
    command: str = ""
    link: Link | None = None
