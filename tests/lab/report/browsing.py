"""A report in a real browser."""

from __future__ import annotations

import json
import pkgutil
import shutil
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
IS_DISPLAYED = (pkgutil.get_data("selenium.webdriver.remote", "isDisplayed.js") or b"").decode()
"""What selenium asks the browser for one element; we ask for many at once."""


class Browser:
    """A page that is open, and what was asked from the network and said on the console for it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, folder: Path, width: int = 1280, scheme: str = "light") -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.media(scheme=scheme)
        self.driver.get_log("performance"), self.driver.get_log("browser")
        self.driver.get((folder / "report.html").as_uri())

    def media(self, kind: str = "", scheme: str = "light") -> None:
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": [feature]})

    def requests(self) -> list[str]:
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent]

    def console(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def every(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def seen(self, selector: str) -> list[WebElement]:
        found: list[WebElement] = self.driver.execute_script(
            f"const shown = ({IS_DISPLAYED}); return arguments[0].filter(each => shown(each))",
            self.every(selector),
        )
        return found

    def click(self, selector: str) -> None:
        self.driver.execute_script("arguments[0].click()", self.find(selector))

    def style(self, selector: str, name: str) -> str:
        return self.find(selector).value_of_css_property(name)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)
