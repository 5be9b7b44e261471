"""A page in a real Chromium, for the tests of this folder."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.ui import WebDriverWait


class Page:
    """One window."""

    def __init__(self, driver: Any):
        self.driver = driver

    def open(self, path: Path, width: int = 1400, features: Mapping[str, str] | None = None) -> None:
        """Load a file in a window of a width; features: of CSS media, such as prefers-color-scheme."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        media = [{"name": name, "value": value} for name, value in (features or {}).items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": media})
        self.driver.get(path.as_uri())

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector)]

    def point(self, selector: str, x: int, y: int) -> None:
        """Move the pointer to an offset from the middle of an element."""
        element = self.one(selector)
        self.run("arguments[0].scrollIntoView({ block: 'center' })", element)
        ActionChains(self.driver).move_to_element_with_offset(element, x, y).perform()

    def wait(self, script: str) -> Any:
        """What the script returns, once it is true; half a minute at most, for a machine that has other work."""
        return WebDriverWait(self.driver, 30, poll_frequency=0.05).until(lambda driver: driver.execute_script(script))

    def overflows(self) -> list[str]:
        """What reaches beyond the window."""
        return self.run(
            "return document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll('body *')]"
            ".filter((one) => one.getBoundingClientRect().right > innerWidth + 1)"
            ".map((one) => `${one.tagName}.${one.className}`)"
        )

    def console(self) -> list[Any]:
        return self.driver.get_log("browser")


@contextlib.contextmanager
def chromium() -> Iterator[Page]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or ""  # both named, or selenium asks the network for them
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield Page(driver)
    finally:
        driver.quit()
