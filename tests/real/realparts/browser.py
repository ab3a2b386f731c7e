"""Chromium as Debian has it, or Chrome, with the driver that comes with it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.real.realparts.jvm import tool

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--lang=en",
)


@contextmanager
def chromium() -> Iterator[Any]:
    """Open a browser; the test ends with `require_real` where there is none."""
    program, driver = shutil.which("google-chrome") or tool("chromium"), tool("chromedriver")
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = program
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    os.environ.setdefault("SE_OFFLINE", "true")  # selenium looks for no driver of its own
    browser = Chrome(options=options, service=ChromeService(driver))
    try:
        browser.set_script_timeout(60)
        yield browser
    finally:
        browser.quit()
