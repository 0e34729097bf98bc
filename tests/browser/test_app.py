"""The Equilibrium Explorer in a real browser: the command as a process of its own, and people who use its page."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from explained_run import STEPS, explainer, run_folder, small_scenes
from page_client import Client, page_server
from PIL import Image
from reports import UNSEEN, very_hostile_run

from meq.runs.explanation import Explanation
from meq.viz.app.uploads import MAX_BYTES

PATIENCE = 60
"""Seconds; on a machine with nothing else to do it takes one or two."""
SLIDER = "#meq-k input[type=range]"
SEEN = ".meq-look .frame:not([hidden])"


@dataclass(frozen=True)
class Server:
    address: str
    uploads: Path
    at_first: frozenset[Path]

    def left(self) -> set[Path]:
        """What lies in the folder for uploads that was not there in the beginning."""
        return set(self.uploads.rglob("*")) - self.at_first


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, new_browser: object) -> Iterator[Server]:
    """`meq app` for all tests of this file; asked to end, it does, and leaves nothing."""
    with page_server(run_folder(), tmp_path_factory.mktemp("server")) as running:
        yield Server(running.address, running.folder, frozenset(running.folder.rglob("*")))
    assert "Traceback" not in "".join(running.said)


@dataclass
class Person:
    """Somebody before the page."""

    browser: Any
    server: Server

    def opens(self) -> Person:
        self.browser.get(self.server.address)
        self.waits(lambda: self.all(SEEN), "the first example")
        return self

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def waits(self, ready: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not ready():
            assert time.monotonic() < end, f"{what} did not appear"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        return str(
            self.browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
        )

    def types(self, field: str, words: str) -> None:
        box = self.one(f"{field} textarea")
        box.send_keys("\ue009a\ue000")  # control and a
        box.send_keys("\ue003" + words)  # backspace: the page hears of keys, not of a field that is emptied by a script

    def uploads(self, path: Path) -> None:
        self.one("#meq-upload input[type=file]").send_keys(str(path))

    def looks(self, *captions: str) -> None:
        """Presses the button, and waits for the words of these captions."""
        self.one("#meq-go").click()
        self.waits(lambda: self.words() == [caption.split() for caption in captions], f"{captions}")

    def words(self) -> list[list[str]]:
        script = "return [...document.querySelectorAll(arguments[0])].map(p => [...p.children].map(s => s.textContent))"
        return list(self.browser.execute_script(script, f"{SEEN} .words"))

    def chances(self) -> list[dict[str, str]]:
        """The probabilities that are seen, one dictionary per caption."""
        script = """return [...document.querySelectorAll(arguments[0])].map(frame =>
            Object.fromEntries([...frame.querySelectorAll(".chance")].map(c => [c.dataset.label, c.textContent])))"""
        return list(self.browser.execute_script(script, SEEN))

    def step(self) -> int:
        (first, *_) = self.all(SEEN)
        return int(first.get_attribute("data-k"))

    def refusal(self) -> str:
        self.waits(lambda: self.all("#meq-message .meq-refusal"), "a refusal")
        return self.text("#meq-message .meq-refusal")

    def complaints(self) -> list[str]:
        """Errors on the console."""
        return [each["message"] for each in self.browser.get_log("browser") if each["level"] == "SEVERE"]

    def hosts(self) -> set[str]:
        """Whom the page has asked for anything."""
        messages = [json.loads(each["message"])["message"] for each in self.browser.get_log("performance")]
        asked = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in asked if urlsplit(url).scheme not in ("data", "blob", "about")}


@pytest.fixture
def person(browser: Any, server: Server) -> Person:
    return Person(browser, server).opens()


def a_picture(folder: Path, place: int = 9) -> Path:
    path = folder / f"scene {place}.png"
    small_scenes().splits["test"][place].content["image"].open().save(path)
    return path


def computed(path: Path, *captions: str) -> list[Explanation]:
    return explainer()([explainer().pair(path, caption) for caption in captions])


def expected(found: Explanation, step: int) -> dict[str, str]:
    assert found.probabilities is not None
    chances = found.probabilities[found.row(step)].tolist()
    return {label: f"{chance:.3f}" for label, chance in zip(found.labels, chances, strict=True)}


def test_the_page_opens_with_an_example_and_asks_nobody_else(person: Person) -> None:
    assert person.step() == STEPS
    assert person.text(".meq-look .said").startswith(f"k = {STEPS} (K, read here): ")
    assert person.hosts() == {urlsplit(person.server.address).netloc}
    assert person.complaints() == []


def test_upload_type_and_slide_and_the_numbers_are_those_of_the_library(person: Person, tmp_path: Path) -> None:
    path, captions = a_picture(tmp_path), ("a yellow star is there", "there is a green square")
    person.uploads(path)
    person.waits(lambda: path.name in person.text("#meq-preview"), "the preview")
    person.types("#meq-caption", captions[0])
    person.types("#meq-other", captions[1])
    person.looks(*captions)
    found = computed(path, *captions)
    slider = person.one(SLIDER)
    seen = {}
    for key in ["\ue012"] * STEPS + ["\ue014"] * 2 * STEPS:  # left, then right, as people without a mouse do
        slider.send_keys(key)
        time.sleep(0.05)
        seen[person.step()] = person.chances()
    assert seen == {k: [expected(each, k) for each in found] for k in range(2 * STEPS + 1)}
    assert len({json.dumps(each) for each in seen.values()}) > STEPS  # they do change
    assert person.server.left() == set()
    assert person.complaints() == []


def test_moving_the_slider_asks_the_server_nothing_and_takes_no_time(person: Person) -> None:
    person.hosts()
    script = """
        const slider = document.querySelector(arguments[0]), done = arguments[1], start = performance.now();
        Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(slider, 0);
        slider.dispatchEvent(new Event("input", { bubbles: true }));
        const wait = () => document.querySelector('.meq-look .frame:not([hidden])').dataset.k === "0"
            ? done(performance.now() - start) : requestAnimationFrame(wait);
        wait();"""
    person.browser.set_script_timeout(PATIENCE)
    milliseconds = person.browser.execute_async_script(script, SLIDER)
    assert milliseconds < 1000  # some tens on an idle machine
    assert person.hosts() == set()


def test_play_goes_through_all_steps(person: Person) -> None:
    person.one("#meq-play").click()
    person.waits(lambda: person.step() == 0, "the start")
    person.waits(lambda: person.step() == 2 * STEPS, "the end")
    assert person.one(SLIDER).get_attribute("value") == str(2 * STEPS)


def test_bad_uploads_are_refused_on_the_page_and_the_next_good_one_works(person: Person, tmp_path: Path) -> None:
    before = person.text("#meq-preview")
    words = tmp_path / "words.png"
    words.write_text("a letter that says it is a picture")
    person.uploads(words)
    assert "words.png is not a picture: choose a PNG" in person.refusal()
    bomb = tmp_path / "bomb.png"
    Image.new("1", (12_000, 12_000)).save(bomb)
    assert bomb.stat().st_size < 100_000
    person.uploads(bomb)
    person.waits(lambda: "12,000 x 12,000 pixels" in person.text("#meq-message"), "the refusal of the bomb")
    assert person.text("#meq-preview") == before
    assert person.server.left() == set()
    good = a_picture(tmp_path)
    person.uploads(good)
    person.waits(lambda: good.name in person.text("#meq-preview"), "the preview")
    person.waits(lambda: not person.all("#meq-message .meq-refusal"), "the end of the refusal")


def test_a_file_of_too_many_bytes_is_refused_on_the_page(person: Person, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (MAX_BYTES // 3000, 1100, 3), dtype=np.uint8)
    large = tmp_path / "large.bmp"
    Image.fromarray(noise).save(large)
    assert large.stat().st_size > MAX_BYTES
    before = person.text("#meq-preview")
    person.uploads(large)
    person.waits(lambda: "exceed the maximum allowed size of 10" in person.text("body"), "the refusal")
    assert person.text("#meq-preview") == before
    assert person.server.left() == set()


@pytest.mark.parametrize(
    ("caption", "said"),
    [("", "The caption is empty"), ("a red thing " * 30, "The caption is longer than the model reads")],
    ids=["empty", "too long"],
)
def test_captions_that_cannot_be_read_are_refused_on_the_page(person: Person, caption: str, said: str) -> None:
    before = person.words()
    person.types("#meq-caption", caption)
    person.one("#meq-go").click()
    assert said in person.refusal()
    assert person.words() == before
    assert person.complaints() == []


def test_what_is_typed_is_shown_and_never_run(person: Person) -> None:
    person.types("#meq-caption", "<img src=x onerror=document.title='run'> ${1+1} {{title}}")
    person.one("#meq-go").click()
    person.waits(lambda: "onerror" in person.words()[0], "the words")
    assert person.browser.title == "Equilibrium Explorer"
    assert "".join(person.words()[0]).endswith("${1+1}{{title}}")
    assert person.complaints() == []


def test_a_model_with_hostile_labels_is_shown_and_none_of_them_runs(browser: Any, tmp_path: Path) -> None:
    temporary = tmp_path / "server"
    temporary.mkdir()
    with page_server(very_hostile_run(), temporary) as running:
        person = Person(browser, Server(running.address, running.folder, frozenset())).opens()
        assert person.browser.title == "Equilibrium Explorer"
        assert "<script>" in person.text("#meq-shown")
        assert not UNSEEN & set(person.text("body"))
        assert len(person.text("#meq-shown")) < 100_000
        for scheme in ("javascript:", "http://127.0.0.1:9/"):
            assert person.all(f'a[href^="{scheme}"], img[src^="{scheme}"]') == []
        assert person.hosts() == {urlsplit(running.address).netloc}
        assert person.complaints() == []
        person.browser.get("about:blank")


def test_two_people_at_once_see_their_own(person: Person, new_browser: Callable[[], Any], tmp_path: Path) -> None:
    people = [person, Person(new_browser(), person.server).opens()]
    pictures = [a_picture(tmp_path, 0), a_picture(tmp_path, 12)]
    captions = ["there is a red thing", "a blue circle is there"]
    for each, picture in zip(people, pictures, strict=True):
        each.uploads(picture)
    for each, picture, caption in zip(people, pictures, captions, strict=True):
        each.waits(lambda each=each, picture=picture: picture.name in each.text("#meq-preview"), "the preview")
        each.types("#meq-caption", caption)
        each.types("#meq-other", "")
    for each in people:
        each.one("#meq-go").click()
    for each, picture, caption in zip(people, pictures, captions, strict=True):
        each.waits(lambda each=each, caption=caption: each.words() == [caption.split()], caption)
        (found,) = computed(picture, caption)
        assert each.chances() == [expected(found, STEPS)]
        assert each.complaints() == []


def test_who_has_to_wait_sees_how_many_are_before_them(person: Person, tmp_path: Path) -> None:
    crowd = Client(person.server.address)
    crowd.admit(crowd.upload(a_picture(tmp_path).read_bytes()), "a red thing")
    person.types("#meq-caption", "there is a green circle")
    for _ in range(25):
        crowd.join("meq-go", "click", [None, "a red thing", "a blue thing", 0])
    person.one("#meq-go").click()
    person.waits(lambda: re.search(r"queue: \d+/\d+", person.text("#meq-shown")), "the place in the queue")
    person.waits(lambda: person.words()[0] == ["there", "is", "a", "green", "circle"], "the look")
    crowd.close()
    assert person.complaints() == []


def test_with_a_password_the_page_asks_for_it_and_works_as_before(
    new_browser: Callable[[], Any], tmp_path: Path
) -> None:
    temporary = tmp_path / "server"
    temporary.mkdir()
    with page_server(run_folder(), temporary, "--auth", "somebody:a long password") as running:
        browser = new_browser()
        here = Server(running.address, running.folder, frozenset())
        browser.get(running.address)
        assert "gradio" not in browser.page_source  # its dialog is open
        browser.get(running.address.replace("://", "://somebody:a%20long%20password@"))  # as typed into its dialog
        person = Person(browser, here).opens()
        path = a_picture(tmp_path)
        person.uploads(path)
        person.waits(lambda: path.name in person.text("#meq-preview"), "the preview")
        person.types("#meq-caption", "a yellow star")
        person.types("#meq-other", "")
        person.looks("a yellow star")
        (found,) = computed(path, "a yellow star")
        assert person.chances() == [expected(found, STEPS)]
        browser.get("about:blank")
    assert "Traceback" not in "".join(running.said)


def test_the_other_tabs_measure_when_asked(person: Person) -> None:
    for name, words in (("influence", "at the state that is read"), ("spectrum", "the largest modulus is")):
        (tab,) = [each for each in person.all("button[role=tab]") if each.text.lower() == name]
        tab.click()
        person.waits(lambda name=name: person.one(f"#meq-measure-{name}").is_displayed(), name)
        person.one(f"#meq-measure-{name}").click()
        person.waits(lambda name=name, words=words: words in person.text(f"#meq-{name}"), words)
        assert all(each.get_attribute("naturalWidth") != "0" for each in person.all(f"#meq-{name} img"))
    assert person.complaints() == []


def test_every_field_has_a_name_and_can_be_reached_by_keyboard(person: Person) -> None:
    fields = person.all(
        "#meq-example input, #meq-caption textarea, #meq-other textarea, #meq-k input, #meq-go, #meq-play"
    )
    assert len(fields) >= 6
    assert [each.get_attribute("outerHTML") for each in fields if not each.accessible_name] == []
    assert all(each.get_property("tabIndex") >= 0 for each in fields)
    person.types("#meq-other", "there is a blue star")
    person.one("#meq-other textarea").send_keys("\ue008\ue007")  # shift and enter, where a field has several lines
    person.waits(lambda: "star" in person.words()[1], "the look")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it_in_either_light(browser: Any, server: Server, scheme: str) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    person = Person(browser, server).opens()
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    cards = person.all(".meq-look .card")
    assert all(card.rect["x"] >= 0 and card.rect["x"] + card.rect["width"] <= 390 for card in cards)
    assert cards[1].rect["y"] > cards[0].rect["y"]  # below each other
    ink, paper = (browser.execute_script(LIGHTNESS, selector, which) for selector, which in INK_AND_PAPER)
    assert (ink > paper) == (scheme == "dark")
    assert abs(ink - paper) > 0.5


LIGHTNESS = """
    const numbers = getComputedStyle(document.querySelector(arguments[0]))[arguments[1]].match(/[\\d.]+/g).map(Number);
    return (numbers[0] + numbers[1] + numbers[2]) / 3 / 255;"""
INK_AND_PAPER = ((".meq-look .said", "color"), ("body", "backgroundColor"))
