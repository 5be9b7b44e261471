"""A page in a real Chromium, for the tests of this folder."""

import contextlib
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

_OUTSIDE = """const page = document.documentElement, sideways = page.scrollWidth > page.clientWidth ? ["the page"] : [];
    return sideways.concat([...document.querySelectorAll("body *")].filter((one) => one.checkVisibility()
    && !one.closest(".skip") && !one.parentElement.closest("svg, .scroll, .equation")
    && one.getBoundingClientRect().right > page.clientWidth + 1).map((one) => one.outerHTML.slice(0, 80)))"""
_UNFOLD = "document.querySelectorAll('details:not(.vega-embed *)').forEach((one) => { one.open = true; })"
_READY = """return !document.querySelector("#runs-fold[open]:not(:has(table))") &&
    [...document.querySelectorAll(".chart:not(:has(summary[aria-label]))")].every((one) => !one.checkVisibility())"""
_VIOLATIONS = """const done = arguments[0];
    axe.run({resultTypes: ["violations"]}).then((result) => done(result.violations.flatMap(
        (one) => one.nodes.map((node) => `${one.id}: ${node.target} ${node.failureSummary}`))));"""
_CHOOSE = """const select = document.querySelector(arguments[0]);
    select.value = [...select.options].find((one) => one.text.includes(arguments[1])).value;
    select.dispatchEvent(new Event("change"))"""


class Page:
    def __init__(self, driver: Any):
        self.driver = driver

    def command(self, name: str, **values: Any) -> Any:
        """A command of Chromium's DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, values)

    def screen(self, width: int = 1400, *, scheme: str = "light") -> None:
        """A screen of this many CSS pixels."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def open(self, path: Path, width: int = 1400, *, part: str = "", scripts: bool = True, **screen: str) -> None:
        """Load a file on a screen of this width. part: the id that the address ends with. scripts: False until the next
        page is loaded, as to a page whose scripts may run `noscript` is nothing."""
        self.screen(width, **screen)
        self.driver.get("about:blank")  # an address that differs in its part alone loads nothing
        self.command("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.driver.get(path.as_uri() + part)

    def unfold(self) -> None:
        """Open all that is folded, and wait until its charts are drawn."""
        self.run(_UNFOLD)
        self.ready()

    def ready(self) -> None:
        self.wait(_READY)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def choose(self, selector: str, text: str) -> None:
        """Choose the first option with this text in it, as a user does."""
        self.run(_CHOOSE, selector, text)

    def wait(self, script: str, *arguments: Any) -> Any:
        """What the script returns, once it is true; half a minute at most, for a machine that has other work."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 30, poll_frequency=0.05).until(lambda _: self.run(script, *arguments))

    def outside(self) -> list[str]:
        """What reaches beyond the window."""
        return self.run(_OUTSIDE)

    def violations(self) -> list[str]:
        self.driver.set_script_timeout(300)  # seconds, of a machine that has other work
        self.run((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
        return self.driver.execute_async_script(_VIOLATIONS)

    def console(self) -> list[Any]:
        return self.driver.get_log("browser")


@contextlib.contextmanager
def chromium() -> Iterator[Page]:
    """A window that no one sees."""
    from selenium import webdriver  # a development dependency: only the tests marked chromium need it

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or ""  # both named, or selenium asks the network for them
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    page = Page(driver)
    page.command("Emulation.setFocusEmulationEnabled", enabled=True)
    try:
        yield page
    finally:
        driver.quit()
