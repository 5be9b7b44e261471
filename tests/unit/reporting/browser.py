"""A real Chromium, and what the tests of the page ask it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def chromium(width: int = 1300, height: int = 1000) -> Iterator[Any]:
    """A driver without a window, whose console can be read."""
    from selenium import webdriver  # a development dependency: only the tests marked chromium need it

    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.binary_location = shutil.which("chromium") or ""  # both named, or selenium asks the network for them
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    try:
        yield driver
    finally:
        driver.quit()


def emulate(browser: Any, *, width: int, media: str = "", scheme: str = "light") -> None:
    """A screen, or a sheet, of this many CSS pixels."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def press(browser: Any, key: str) -> None:
    """A key on whatever has the focus: `Tab`, `Escape`, `ArrowRight` …"""
    code = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "ArrowRight": 39, "ArrowDown": 40}[key]
    event = {"key": key, "code": key, "windowsVirtualKeyCode": code}
    text = {"text": "\r"} if key == "Enter" else {}
    browser.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyDown", **event, **text})
    browser.execute_cdp_cmd("Input.dispatchKeyEvent", {"type": "keyUp", **event})
