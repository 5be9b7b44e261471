"""A page in a real Chromium, for the tests of this folder."""

import contextlib
import shutil
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

SHEET = 687
"""CSS pixels of the 182 mm between the margins of A4."""
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowRight": 39, "ArrowDown": 40}
_OUTSIDE = """
const sideways = document.documentElement.scrollWidth > innerWidth ? ["the document"] : [];
return sideways.concat([...document.querySelectorAll("body *")].filter((one) => one.checkVisibility()
    && (!one.closest(".scroll") || one.matches(".scroll")) && !one.closest("svg, .sr, .skip")
    && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80)))"""
_CUT = """return [...document.querySelectorAll(".scroll")].filter((one) => one.checkVisibility()
    && one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent.slice(0, 80))"""
_VIOLATIONS = """const done = arguments[0];
    axe.run({resultTypes: ["violations"]}).then((result) => done(result.violations.flatMap(
        (one) => one.nodes.map((node) => `${one.id}: ${node.target} ${node.failureSummary}`))));"""
_CHOOSE = """const one = document.querySelector(arguments[0]);
    one.value = arguments[1];
    one.dispatchEvent(new Event(arguments[2]))"""


class Page:
    def __init__(self, driver: Any):
        self.driver = driver

    def command(self, name: str, **values: Any) -> Any:
        """A command of Chromium's DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, values)

    def screen(self, width: int = 1400, *, scheme: str = "light", media: str = "") -> None:
        """A screen, or with media "print" a sheet, of this many CSS pixels."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, path: Path, width: int = 1400, *, scheme: str = "light", media: str = "", part: str = "") -> None:
        """Load a file on a screen of this width. part: the id that the address ends with."""
        self.screen(width, scheme=scheme, media=media)
        self.driver.get("about:blank")  # an address that differs in its part alone loads nothing
        self.driver.get(path.as_uri() + part)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector)]

    def style(self, selector: str, name: str) -> str:
        return self.run("return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]", selector, name)

    def point(self, selector: str, x: int, y: int) -> None:
        """Move the pointer to an offset from the middle of an element."""
        from selenium.webdriver.common.action_chains import ActionChains

        element = self.one(selector)
        self.run("arguments[0].scrollIntoView({ block: 'center' })", element)
        ActionChains(self.driver).move_to_element_with_offset(element, x, y).perform()

    def press(self, *keys: str) -> None:
        """Keys of `KEYS` on whatever has the focus."""
        for key in keys:
            event = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            text = {"text": "\r"} if key == "Enter" else {}
            self.command("Input.dispatchKeyEvent", type="keyDown", **event, **text)
            self.command("Input.dispatchKeyEvent", type="keyUp", **event)

    def choose(self, selector: str, value: str, event: str = "change") -> None:
        """Give a control a value, as a user's choice does."""
        self.run(_CHOOSE, selector, value, event)

    def wait(self, script: str) -> Any:
        """What the script returns, once it is true; half a minute at most, for a machine that has other work."""
        from selenium.webdriver.support.ui import WebDriverWait

        return WebDriverWait(self.driver, 30, poll_frequency=0.05).until(lambda driver: driver.execute_script(script))

    def unpacked(self) -> None:
        self.wait("return ['side-view', 'token-view'].every((id) => document.getElementById(id).hidden === false)")

    def outside(self) -> list[str]:
        """What reaches beyond the window."""
        return self.run(_OUTSIDE)

    def cut(self) -> list[str]:
        """What is wider than the box that it scrolls in: on paper it is lost."""
        return self.run(_CUT)

    def violations(self) -> list[str]:
        self.driver.set_script_timeout(300)  # seconds, of a machine that has other work
        self.run(_axe())
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


@cache
def _axe() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
