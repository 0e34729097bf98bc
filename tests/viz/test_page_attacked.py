"""The page as a process of its own, under fifty people at once and under those who mean harm; all on this machine."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from explained_run import explainer, run_folder, small_scenes
from fuzzing import some
from page_client import COMMAND, Client, PageServer, page_server, preview_bytes

from meq.viz.app.guard import FULL
from meq.viz.app.uploads import admit_picture

pytestmark = pytest.mark.fuzz

PEOPLE = 50
SECRET = "somebody:a long password"
CAPTIONS = ["there is a red thing", "a green circle is there", "yellow", "a blue star", "there is no square"]
CHANCE = re.compile(r'<div class="frame" data-k="(\d+)"|<span class="chance" data-label="(\w+)">([\d.]+)</span>')
WORD = re.compile(r'<p class="words">(.*?)</p>', re.DOTALL)
SLOW = """
import meq.viz.app.measuring as measuring
measuring.COMMAND = '''
import time
import meq.viz.app.measuring as process
answer = process.answer
def slowly(model, question):
    end = time.monotonic() + 6
    while time.monotonic() < end:  # as busy as a real one
        pass
    return answer(model, question)
process.answer = slowly
process.main()
'''
"""
BROKEN = """
from meq.viz.app.explorer import Explorer
look = Explorer.look
def broken(self, picture, caption, other, k):
    if caption == "break":
        raise KeyError("a secret of ours")
    return look(self, picture, caption, other, k)
Explorer.look = broken
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """With a password, a name that is allowed, measurements that take long, and one question that finds a bug."""
    secret = tmp_path_factory.mktemp("secret") / "password"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    options = ["--auth-file", str(secret), "--allow-host", "models.example.org"]
    code = SLOW + BROKEN + COMMAND
    with page_server(run_folder(), tmp_path_factory.mktemp("server"), *options, code=code) as running:
        yield running
    assert "Traceback" in running.said[-1]  # of the bug, for whoever runs the server


@pytest.fixture(scope="module")
def client(server: PageServer) -> Iterator[Client]:
    made = Client(server.address, SECRET)
    yield made
    made.close()


def scene(place: int) -> bytes:
    out = io.BytesIO()
    small_scenes().splits["test"][place].content["image"].open().save(out, "PNG")
    return out.getvalue()


def said_in(panel: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The words of a look, and its probabilities at step 0."""
    first = WORD.search(panel)
    assert first is not None, panel[:400]
    words = re.sub(r"<[^>]+>", "", first[1]).split()
    step, chances = "", []
    for found in CHANCE.finditer(panel):
        step = found[1] or step
        if found[2] and step == "0":
            chances.append((found[2], found[3]))
    return words, chances


def expected(data: bytes, caption: str) -> tuple[list[str], list[tuple[str, str]]]:
    (found,) = explainer()([explainer().pair(admit_picture(data, "x"), caption)])
    assert found.probabilities is not None
    chances = [f"{chance:.3f}" for chance in found.probabilities[found.row(0)].tolist()]
    return caption.split(), list(zip(found.labels, chances, strict=True))


def test_fifty_people_with_the_same_picture_all_get_their_own_answers(server: PageServer, client: Client) -> None:
    data, own = scene(0), {place: scene(place) for place in (5, 9)}
    right = {caption: expected(data, caption) for caption in CAPTIONS}
    before = set(server.folder.rglob("*"))

    def use(place: int) -> tuple[str, str, bytes]:
        person = Client(server.address, SECRET)
        person._events = client.events()
        caption, other = CAPTIONS[place % 5], CAPTIONS[(place + 2) % 5]
        sent = own.get(place, data)
        _, _, preview, message, _, shown, *_ = person.admit(person.upload(sent, f"{place}.png"), caption)
        message_again, _, again, *_ = person.look(other)
        person.close()
        assert (message, message_again) == ("", "")
        assert f"{place}.png" in preview
        if sent == data:
            assert said_in(shown) == right[caption]
            assert said_in(again) == right[other]
        return preview, shown, preview_bytes(preview)

    with ThreadPoolExecutor(PEOPLE) as pool:
        seen = list(pool.map(use, range(PEOPLE)))
    assert len({picture for _, _, picture in seen}) == 3  # the one they share, and the two that nobody else sees
    assert [seen[place][2] == seen[0][2] for place in (5, 9, 10)] == [False, False, True]
    assert set(server.folder.rglob("*")) == before


def test_those_who_wait_are_told_how_many_are_before_them_and_none_waits_for_a_measurement(
    server: PageServer, client: Client
) -> None:
    client.admit(client.upload(scene(0)), CAPTIONS[0])
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        measured = pool.submit(lambda: (client.measure("spectrum")[0], time.monotonic() - began))
        time.sleep(0.5)
        person = Client(server.address, SECRET)
        person.admit(person.upload(scene(5)), CAPTIONS[1])
        joined = [person.join("meq-go", "click", [None, CAPTIONS[0], "", 0]) for _ in range(6)]
        places = []
        for message in person.messages():
            places += [(message["rank"], message["queue_size"])] if message["msg"] == "estimation" else []
            if message["msg"] == "process_completed":
                joined.remove(message["event_id"])
            if not joined:
                break
        looked = time.monotonic() - began
        assert not measured.done()
        panel, took = measured.result(timeout=60)
    person.close()
    assert looked < took
    assert "the largest modulus is" in panel
    assert max(size for _, size in places) > 1
    assert any(rank > 0 for rank, _ in places)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("evil.example", None, 421),
        ("127.0.0.1.evil.example", None, 421),
        ("127.0.0.1:1", None, 421),
        (None, "http://evil.example", 403),
        (None, "null", 403),
        ("models.example.org", "https://models.example.org", 200),
        (None, None, 200),
    ],
)
def test_foreign_names_and_foreign_pages_are_refused(
    client: Client, host: str | None, origin: str | None, status: int
) -> None:
    headers = ({"Host": host} if host else {}) | ({"Origin": origin} if origin else {})
    answers = [
        client.http.get("config", headers=headers),
        client.http.post("gradio_api/upload", headers=headers, files={"files": ("x.png", b"x")}),
        client.http.post("gradio_api/reset", headers=headers, json={"event_id": "x"}),
    ]
    assert [each.status_code for each in answers] == [status] * 3


def test_without_the_password_nothing_is_answered(server: PageServer) -> None:
    with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as stranger:
        for path in ("", "config", "gradio_api/queue/data?session_hash=x", "gradio_api/heartbeat/x", "assets/x.js"):
            assert stranger.get(path).status_code == 401
        assert stranger.post("gradio_api/upload", files={"files": b"x"}).status_code == 401
        assert stranger.post("gradio_api/queue/join", json={}).status_code == 401
        assert stranger.get("", auth=("somebody", "a wrong password")).status_code == 401


PLACES = ["/etc/passwd", "etc/passwd", "record.json", "pyproject.toml", "config", "gradio_api/info"]
ROUTES = ["/gradio_api/file=", "/gradio_api/file/", "/file=", "/assets/", "/static/", "/static/img/", "/svelte/", "/"]
WAYS = [
    "",
    "../" * 9,
    "..%2f" * 9,
    "%2e%2e/" * 9,
    "%252e%252e%252f" * 9,
    "..\\" * 9,
    "..%5c" * 9,
    "/",
    "//",
    "%2f",
    "%00",
]


def raw(server: PageServer, path: str) -> bytes:
    """The answer to a path that no client has put in order."""
    head = f"GET {path} HTTP/1.1\r\nHost: {server.host}\r\nConnection: close\r\n"
    key = httpx.BasicAuth(*SECRET.split(":"))._auth_header
    name, _, port = server.host.partition(":")
    with socket.create_connection((name, int(port)), timeout=60) as line:
        line.sendall(f"{head}Authorization: {key}\r\n\r\n".encode("latin-1"))
        return b"".join(iter(lambda: line.recv(65536), b""))


def test_no_trick_with_paths_leads_to_a_file_of_ours(server: PageServer) -> None:
    cases = [route + way + place for route in ROUTES for way in WAYS for place in PLACES]
    for path in some([each for each in cases if each != "/config"], 120):
        answer = raw(server, path)
        status = answer.split(b" ", 2)[1]
        assert status in (b"404", b"400", b"403", b"405"), (path, answer[:200])
        for secret in (b"root:", b"[project]", b'"schema"', str(server.folder).encode()):
            assert secret not in answer, path


@pytest.mark.parametrize(
    "data",
    [
        [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, None, "a red thing", "", 0],
        ["/etc/passwd", {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, "a red thing", "", 0],
        ["../../etc/passwd", None, "a red thing", "", 0],
        [None, None, None, None, None],
        [["x"], None, {"a": 1}, 7, "k"],
        [],
        ["x"] * 40,
    ],
)
def test_questions_that_no_page_would_ask_show_nothing_of_the_server(
    server: PageServer, client: Client, data: list[object]
) -> None:
    person = Client(server.address, SECRET)
    person._events = client.events()
    event = person.join("meq-upload", "upload", data)
    for message in person.messages():
        if message.get("event_id") == event and message["msg"] == "process_completed":
            break
    person.close()
    answer = json.dumps(message)
    for inside in ("Traceback", "site-packages", "root:x", str(server.folder), str(Path(__file__).parents[2])):
        assert inside not in answer


def test_a_bug_of_ours_is_a_sentence_on_the_page(client: Client) -> None:
    client.admit(client.upload(scene(0)), CAPTIONS[0])
    message, *_ = client.look("break")
    assert "this is a bug in meq, please report it" in message
    assert "secret" not in message
    assert client.look(CAPTIONS[0])[0] == ""  # and the page goes on


def test_the_answer_to_an_upload_names_no_place(server: PageServer, client: Client) -> None:
    answer = client.http.post("gradio_api/upload", files={"files": ("x.png", scene(0))})
    assert re.fullmatch(r'\["[\w-]{32}"\]', answer.text)
    page = client.http.get("").text + client.http.get("config").text
    assert str(server.folder) not in page
    assert str(run_folder()) not in page


def test_a_queue_that_is_full_says_so_and_takes_the_next_when_there_is_room(server: PageServer, client: Client) -> None:
    person = Client(server.address, SECRET)
    person._events = client.events()
    person.admit(person.upload(scene(0)), CAPTIONS[0])
    question = person.question("meq-go", "click", [None, "", "", 0])  # refused at once, when its turn comes
    stop = threading.Event()
    full: list[str] = []

    def push() -> None:
        with httpx.Client(base_url=server.address, trust_env=False, timeout=60, auth=tuple(SECRET.split(":"))) as line:
            for _ in range(100):
                if stop.is_set():
                    return
                answer = line.post("gradio_api/queue/join", json=question)
                if answer.status_code == 503:
                    full.append(answer.json()["detail"])
                    stop.set()

    threads = [threading.Thread(target=push) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    person.close()
    assert full[0] == FULL
    assert client.admit(client.upload(scene(0)), CAPTIONS[0])[3] == ""
