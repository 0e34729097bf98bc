"""The report in a real browser: opened from disk, on a phone, in the dark, on paper."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from reports import hostile_page, run_page, study_page

READABLE = 4.5
"""The contrast that WCAG asks of text."""

CONTRASTS = """
const parse = (c) => c.match(/[\\d.]+/g).map(Number);
const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255;
  return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
  if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
const found = {};
for (const e of document.querySelectorAll('h1, h2, h3, h4, p, a, li, dt, dd, th, td, caption, figcaption, span')) {
  if (!e.textContent.trim() || !e.getClientRects().length) continue;
  const a = light(parse(getComputedStyle(e).color)), b = light(behind(e));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const key = e.tagName + '.' + e.className;
  found[key] = Math.min(found[key] ?? 99, ratio);
}
return found;
"""


HANDLERS = """return [...document.querySelectorAll('*')].flatMap((each) => [...each.attributes])
    .filter((each) => each.name.startsWith('on')).map((each) => each.name + '=' + each.value)"""


@pytest.fixture(scope="module")
def pages() -> dict[str, Path]:
    return {"study": study_page(), "run": run_page(), "hostile": hostile_page()}


def requests(browser: Any) -> list[str]:
    """What was asked for; the browser's own pages do not count."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [each["params"]["request"]["url"] for each in events if each["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("data:", "about:", "chrome:"))]


def width(browser: Any, selector: str) -> float:
    return browser.execute_script(f"return document.querySelector('{selector}').getBoundingClientRect().width")


@pytest.mark.parametrize("which", ["study", "run", "hostile"])
def test_it_opens_from_disk_without_errors_requests_or_foreign_scripts(
    browser: Any, pages: dict[str, Path], which: str
) -> None:
    browser.get(pages[which].as_uri())
    assert browser.get_log("browser") == []
    assert requests(browser) == [pages[which].as_uri()]
    assert browser.title.startswith(("Report: ", "Study: "))
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return [...document.links].map((each) => each.protocol)").count("file:") == (
        browser.execute_script("return document.links.length")
    )
    assert browser.execute_script(HANDLERS) == []
    sizes = browser.execute_script("return [...document.images].map((each) => each.naturalWidth)")
    assert len(sizes) >= 5
    assert all(sizes)


@pytest.mark.parametrize("which", ["study", "run"])
def test_on_a_phone_wide_things_scroll_in_their_box_and_the_page_does_not(
    browser: Any, pages: dict[str, Path], which: str
) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get(pages[which].as_uri())
    widths = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert widths == [390, 390]
    assert width(browser, ".photograph .scroll img") > 600  # its words can be read
    assert width(browser, ".small img") < 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_by_day_and_by_night(browser: Any, pages: dict[str, Path], scheme: str) -> None:
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    browser.get(pages["study"].as_uri())
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(22, 24, 28)") == (scheme == "dark")
    contrasts = browser.execute_script(CONTRASTS)
    assert len(contrasts) > 8
    assert {key: ratio for key, ratio in contrasts.items() if ratio < READABLE} == {}


def test_it_prints_on_paper_with_nothing_wider_than_the_sheet(browser: Any, pages: dict[str, Path]) -> None:
    browser.get(pages["study"].as_uri())
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    sheet = {"width": 720, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sheet)
    beyond = browser.execute_script(
        "return [...document.querySelectorAll('table, img, p, dd')].filter("
        "(e) => e.getClientRects().length && e.getBoundingClientRect().right > 721).map((e) => e.tagName)"
    )
    assert beyond == []
    assert browser.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
