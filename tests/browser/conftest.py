"""A real browser for the tests: headless Chromium, driven by Selenium. Without one they skip, or fail if it is due."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
QUIET = ("--disable-background-networking", "--disable-component-update", "--no-first-run")
"""The browser's own requests would be taken for the page's."""
REQUIRE = "MEQ_REQUIRE_BROWSER"


def _missing(reason: str) -> NoReturn:
    """No browser: a reason to skip on a laptop, and a failure where the tests are meant to run."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{reason}, and {REQUIRE}=1 asks for one", pytrace=False)
    pytest.skip(f"{reason}: `make browser` installs one")


@pytest.fixture(scope="session")
def new_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], object]]:
    """Starts a browser with a profile of its own, as a second user would; all are closed at the end."""
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        _missing("Selenium is not installed")
    driver = shutil.which("chromedriver")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if driver is None or chromium is None:
        _missing("there is no Chromium with its driver on PATH")
    opened = []

    def start() -> object:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        profile = tmp_path_factory.mktemp("profile")
        for flag in (*FLAGS, *QUIET, f"--user-data-dir={profile}", "--window-size=1200,900"):
            options.add_argument(flag)
        options.add_experimental_option("prefs", {"download.default_directory": str(_downloads(profile))})
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        made = webdriver.Chrome(options=options, service=Service(driver))
        opened.append(made)
        return made

    yield start
    for each in opened:
        each.quit()


@pytest.fixture(scope="session")
def shared_browser(new_browser: Callable[[], object]) -> object:
    return new_browser()


@pytest.fixture
def browser(shared_browser: object) -> Iterator[object]:
    """One Chromium for all tests; what was logged before is gone, and the page is blank again afterwards.

    `browser.get_log("browser")` is the console, `browser.get_log("performance")` the requests.
    """
    shared_browser.get("about:blank")  # away from the browser's own first page, which asks for a lot
    for kind in ("browser", "performance"):
        shared_browser.get_log(kind)
    yield shared_browser
    shared_browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    shared_browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    shared_browser.get("about:blank")


def _downloads(profile: Path) -> Path:
    folder = profile / "downloads"
    folder.mkdir()
    return folder
