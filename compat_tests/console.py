"""The console as a process, and Chromium to look at it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from compat_tests.client import TIMEOUT_S

MAGNETAR = Path(sys.executable).with_name("magnetar")
DRIVER = "/usr/bin/chromedriver"
_READY = re.compile(r"console ready on (http://[^/]+)/")
_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
_ASKED_EVERY_S = 0.05
WIDE, PHONE = (1280, 860), (390, 844)


@contextmanager
def console(
    bootstrap: str | None, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run a console and yield its address. `bootstrap` None: the arguments name its clusters."""
    command: list[str | Path] = [MAGNETAR, "console", "--listen", "127.0.0.1:0"]
    if bootstrap is not None:
        command += ["--bootstrap", bootstrap]
    process = subprocess.Popen(
        [*command, *arguments],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        ready = _READY.search(line)
        assert ready is not None, line + process.stderr.read()
        yield ready[1]
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)
        process.stderr.close()


class Browser:
    """One Chromium. Every wait ends: with what was waited for, or with an error."""

    def __init__(self) -> None:
        options = webdriver.ChromeOptions()
        for argument in _ARGUMENTS:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self._driver = webdriver.Chrome(options, Service(DRIVER))
        self._base = ""
        self.size(*WIDE)

    def close(self) -> None:
        self._driver.quit()

    def visit(self, base: str) -> None:
        """Go to a console, without any cookie."""
        self._base = base
        self._driver.get(f"{base}/login")
        self._driver.delete_all_cookies()

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        is_phone = (width, height) == PHONE
        self._driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {**metrics, "mobile": is_phone}
        )

    def go(self, path: str, **query: object) -> None:
        self._driver.get(f"{self._base}{path}" + (f"?{urlencode(query)}" if query else ""))

    @property
    def address(self) -> str:
        return self._driver.current_url.removeprefix(self._base)

    @property
    def title(self) -> str:
        return self._driver.title

    def text(self, selector: str = "main") -> str:
        """Return the text that a person sees in the first such element."""
        while True:
            try:
                return self.find(selector).text
            # A live page took the element away between the two questions.
            except StaleElementReferenceException:
                continue

    def find(self, selector: str) -> WebElement:
        return self._driver.find_element(By.CSS_SELECTOR, selector)

    def rows(self, selector: str = "main table.rows") -> list[list[str]]:
        """Return the texts of the cells of the first such table, in one step."""
        script = """
            const table = document.querySelector(arguments[0]);
            return table === null ? [] : [...table.querySelectorAll("tbody tr")].map(
                (row) => [...row.children].map((cell) => cell.innerText.trim()));
        """
        found: list[list[str]] = self._driver.execute_script(script, selector)
        return found

    def script(self, text: str) -> Any:
        return self._driver.execute_script(text)

    def click(self, words: str) -> None:
        """Click the link or button that has these words."""
        path = f"//*[self::a or self::button][normalize-space()={words!r}]"
        self._driver.find_element(By.XPATH, path).click()

    def fill(self, name: str, text: str) -> None:
        field = self.find(f"main [name={name}]")
        field.clear()
        field.send_keys(text)

    def choose(self, name: str, value: str) -> None:
        Select(self.find(f"main [name={name}]")).select_by_value(value)

    def violations(self, *rules: str) -> list[str]:
        """Return what axe-core finds against these rules, with the elements.

        Without rules: those of WCAG 2.1 AA, and good practice.
        """
        if not self.script("return Boolean(window.axe)"):
            source = files("axe_core_python") / "axe.min.js"
            self.script(source.read_text(encoding="utf-8"))
        found: list[str] = self._driver.execute_async_script(
            """
            const [rules, done] = arguments;
            const only = rules.length ? {type: "rule", values: rules} :
                {type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa",
                    "best-practice"]};
            axe.run(document, {runOnly: only}).then((result) => done(result.violations.flatMap(
                (rule) => rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 200)}`))));
            """,
            rules,
        )
        return found

    def press(self, keys: str) -> None:
        """Press keys one right after the other: the page waits for the second one only so long."""
        self._driver.switch_to.active_element.send_keys(keys)

    def await_text(self, words: str, selector: str = "main") -> str:
        """Return the text once it has these words, without a reload."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                seen = self.text(selector)
            except WebDriverException as error:
                seen = str(error)
            if words in seen:
                return seen
            assert time.monotonic() < deadline, f"{words!r} never came: {seen}"
            time.sleep(_ASKED_EVERY_S)  # The page changes by itself; a browser tells no more.

    def overflow(self) -> int:
        """Return how many pixels of the page lie beside the window."""
        script = "const all = document.documentElement; return all.scrollWidth - all.clientWidth"
        found: int = self._driver.execute_script(script)
        return found

    def complaints(self) -> list[str]:
        """Return what the browser refused or failed to do since the last question."""
        return [
            entry["message"] for entry in self._logged() if entry["level"] in ("SEVERE", "WARNING")
        ]

    def _logged(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self._driver.execute("getLog", {"type": "browser"})["value"]
        return found

    def picture(self, path: Path, height_max: int) -> None:
        """Save a picture of the page, as long as it is, to a bound."""
        width = self._driver.execute_script("return window.innerWidth")
        script = "return document.documentElement.scrollHeight"
        self.size(width, min(self._driver.execute_script(script), height_max))
        self._driver.save_screenshot(str(path))
