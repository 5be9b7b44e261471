"""Puts the results page into the site and its navigation, where `make page` or `tepo reproduce` has written it."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation

ADDRESS = "results/page.html"
TITLE = "Results on one page"


def on_files(files: Files, config: Any) -> Files:
    page = Path(config.extra["results_page"])
    if page.is_file():
        files.append(File.generated(config, ADDRESS, abs_src_path=str(page.resolve())))
    return files


def on_nav(nav: Navigation, config: Any, files: Files) -> Navigation:
    if files.get_file_from_path(ADDRESS):
        nav.items.append(Link(TITLE, ADDRESS))
    return nav
