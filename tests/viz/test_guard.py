"""What stands between the network and the page: names, origins, passwords, paths, sizes, and those who dawdle."""

from __future__ import annotations

import asyncio
import base64
import os
import posixpath
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from meq.viz.app.guard import FOLDERS, FULL, MAX_QUESTION, Guard, is_needed
from meq.viz.app.uploads import MAX_BODY, MAX_BYTES, Uploads, read_upload
from meq.web import gate as gate_module
from meq.web import server as server_module
from meq.web.bodies import RefusedError, body_parts
from meq.web.gate import WINDOW_SECONDS, WRONG, Attempts, Hosts, Password
from meq.web.server import address_of, bound_socket, serving

HERE = ("127.0.0.1", 7860)
SECRET = "somebody:long enough"


async def behind(scope: Any, receive: Any, send: Any) -> None:
    """An application that says what reached it."""
    body = b""
    while (message := await receive()).get("more_body", False):
        body += message["body"]
    body += message.get("body", b"")
    status = 503 if body == b"full" else 200
    said = str(dict(Headers(scope=scope))).encode() + b" " + body
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": said})


class Asking:
    """Somebody who asks a guard, without a network."""

    def __init__(self, address: str = "10.0.0.1", **rules: Any) -> None:
        self.uploads = Uploads()
        self.guard = Guard(behind, self.uploads, **rules)
        self.address = address

    def __call__(self, method: str, path: str, **request: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.guard, client=(self.address, 1))  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7860") as client:
                return await client.request(method, path, **request)

        return asyncio.run(ask())


@pytest.fixture
def asking() -> Asking:
    return Asking(hosts=Hosts.of(["models.example.org", "localhost:9000"]))


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Asking:
    monkeypatch.setattr(gate_module, "PAUSE_SECONDS", 0.0)
    return Asking(password=Password.of(SECRET))


# -- names and origins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7860", 200),
        ("localhost:7860", 200),
        ("LOCALHOST:7860", 200),
        ("[::1]:7860", 200),
        ("models.example.org", 200),
        ("models.example.org:8443", 200),
        ("localhost:9000", 200),
        ("localhost:9001", 421),
        ("localhost", 421),
        ("evil.example.org:7860", 421),
        ("models.example.org.evil.example:7860", 421),
        ("127.0.0.1.evil.example:7860", 421),
        ("localhost.:7860", 421),
        ("127.0.0.2:7860", 421),
        ("127.0.0.1:7860@evil.example", 421),
        ("", 421),
    ],
)
def test_the_page_answers_to_its_own_names_and_to_those_that_were_allowed(
    asking: Asking, host: str, status: int
) -> None:
    assert asking("GET", "/", headers={"Host": host}).status_code == status


def test_two_names_at_once_are_refused(asking: Asking) -> None:
    names = [("Host", "127.0.0.1:7860"), ("Host", "evil.example")]
    assert asking("GET", "/", headers=names).status_code == 421


def test_an_address_that_was_connected_to_is_a_name_but_no_other_number_is() -> None:
    hosts, there = Hosts(), ("192.168.0.7", 7860)
    assert hosts.knows("192.168.0.7:7860", there)
    assert hosts.knows("192.168.0.7:7860", ("::ffff:192.168.0.7", 7860))
    assert hosts.knows("[fe80::1]:7860", ("fe80::1", 7860))
    assert not hosts.knows("192.168.0.8:7860", there)
    assert not hosts.knows("192.168.0.7:80", there)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:7860"}, 200),
        ({"Origin": "https://models.example.org"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:7860"}, 403),  # another origin than the one that was asked
        ({"Origin": "http://127.0.0.1:3000"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "file://127.0.0.1:7860"}, 403),
        ({"Origin": "http://127.0.0.1:7860.evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_other_pages_may_not_use_this_one(asking: Asking, headers: dict[str, str], status: int) -> None:
    assert asking("POST", "/gradio_api/queue/join", headers=headers, content=b"{}").status_code == status
    assert asking("GET", "/gradio_api/queue/data", headers=headers).status_code == status
    assert asking("POST", "/gradio_api/upload", headers=headers, files={"files": b"x"}).status_code == status
    assert len(asking.uploads) == (status == 200)


def test_a_link_on_another_page_still_leads_here(asking: Asking) -> None:
    assert asking("GET", "/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_what_a_stranger_says_a_proxy_said_does_not_reach_the_page(asking: Asking) -> None:
    false = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}
    assert "forwarded" not in asking("GET", "/config", headers=false).text
    true = {"X-Forwarded-Host": "models.example.org", "X-Forwarded-Proto": "https"}
    assert "models.example.org" in asking("GET", "/config", headers=true).text


@pytest.mark.parametrize("name", ["http://x", "a b", "x/y", "", "x:", "x:port", "[::1", "user@x", "\nx"])
def test_what_is_no_name_of_a_host_is_an_error_in_a_sentence(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a host: give a name or an address"):
        Hosts.of([name])


@pytest.mark.fuzz
@given(st.text(st.sampled_from("aeo.:[]@/1270localhostexample\\%\x00\n -_"), max_size=40))
@example("127.0.0.1:07860")
@example("0x7f.1:7860")
def test_no_name_is_taken_for_ours_that_is_not(name: str) -> None:
    ours = {f"{each}:{port}" for each in ("localhost", "127.0.0.1", "[::1]") for port in ("7860", "07860")}
    assert Hosts().knows(name, HERE) == (name.lower() in ours)


# -- passwords ---------------------------------------------------------------------------------------------------------


def basic(secret: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}


ROUTES = [
    ("GET", "/"), ("GET", "/config"), ("GET", "/assets/index.js"), ("GET", "/gradio_api/queue/data"),
    ("POST", "/gradio_api/queue/join"), ("POST", "/gradio_api/upload"), ("GET", "/gradio_api/upload_progress"),
    ("GET", "/gradio_api/heartbeat/x"), ("GET", "/gradio_api/info"), ("OPTIONS", "/"), ("GET", "/nowhere"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nothing_at_all_is_answered_without_the_password(locked: Asking, method: str, path: str) -> None:
    answer = locked(method, path, files={"files": b"x"} if path.endswith("upload") else None)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic realm=")
    assert len(locked.uploads) == 0


@pytest.mark.parametrize(
    "header",
    [
        *(basic(secret) for secret in ("somebody:wrong", "somebody:", ":long enough", "", "somebody:long enough ")),
        *({"Authorization": text} for text in ("Basic", "Basic !!!", "Bearer x", "Basic =", "", "Basic " + "A" * 9000)),
    ],
)
def test_a_wrong_password_opens_nothing_and_the_right_one_all(locked: Asking, header: dict[str, str]) -> None:
    assert locked("GET", "/", headers=header).status_code == 401
    assert locked("GET", "/", headers=basic(SECRET)).status_code == 200
    assert locked("GET", "/gradio_api/info", headers=basic(SECRET)).status_code == 404


def test_who_guesses_is_not_listened_to_any_more_and_others_are(locked: Asking) -> None:
    for _ in range(WRONG):
        assert locked("GET", "/", headers=basic("somebody:guess")).status_code == 401
    answer = locked("GET", "/", headers=basic(SECRET))
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == f"{WINDOW_SECONDS:.0f}"
    locked.address = "10.0.0.2"
    assert locked("GET", "/", headers=basic(SECRET)).status_code == 200


def test_guesses_are_forgotten_after_a_while_and_addresses_do_not_fill_the_memory() -> None:
    now = [0.0]
    attempts = Attempts(clock=lambda: now[0])
    for place in range(3000):
        attempts.count(f"10.0.{place // 256}.{place % 256}")
    assert len(attempts._wrong) <= 1024
    for _ in range(WRONG):
        attempts.count("x")
    assert attempts.too_many("x")
    now[0] = WINDOW_SECONDS + 1
    assert not attempts.too_many("x")


def test_a_wrong_password_takes_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "PAUSE_SECONDS", 0.2)
    asking = Asking(password=Password.of(SECRET))
    start = time.monotonic()
    asking("GET", "/", headers=basic("somebody:guess"))
    assert time.monotonic() - start >= 0.2


def test_a_password_is_read_from_a_file_that_nobody_else_may_read(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    assert Password.read(path) == Password.of(SECRET)
    assert "long" not in repr(Password.of(SECRET))
    if os.name == "posix":
        path.chmod(0o644)
        with pytest.raises(ValueError, match="holds a password that others may read: chmod 600"):
            Password.read(path)


# -- paths -------------------------------------------------------------------------------------------------------------

PIECES = ["assets", "static", "svelte", "gradio_api", "upload", "queue", "join", "file=", "etc", "passwd", "config"]
TRICKS = ["..", ".", "", "%2e%2e", "%2E.", "..%2f", "..\\", "\\", "\x00", "C:", "~", "...", "heartbeat", "x.js"]


@pytest.mark.fuzz
@given(st.lists(st.sampled_from(PIECES + TRICKS), max_size=6))
@example(["assets", "..", "..", "config"])
def test_no_path_that_gets_through_leads_out_of_its_folder(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    if is_needed(path):
        assert posixpath.normpath(path) == (path.rstrip("/") or "/") or path.startswith(FOLDERS)
        assert not set("\\\x00%") & set(path)
        assert ".." not in path
        assert "file=" not in path or path.startswith(FOLDERS)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "X"])
def test_other_methods_are_refused(asking: Asking, method: str) -> None:
    assert asking(method, "/").status_code == 405


# -- sizes and times ---------------------------------------------------------------------------------------------------


def test_a_question_that_is_too_large_is_refused_whatever_it_announces(asking: Asking) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(MAX_QUESTION // 2**16 + 1):
            yield b"0" * 2**16

    path = "/gradio_api/queue/join"
    assert asking("POST", path, content=b"0" * (MAX_QUESTION + 1)).status_code == 413
    assert asking("POST", path, content=parts()).status_code == 413
    assert asking("POST", path, content=b"0" * MAX_QUESTION).status_code == 200


@pytest.mark.parametrize(
    ("request_of", "status"),
    [
        (lambda: {"files": {"files": ("x.png", b"data")}}, 200),
        (lambda: {"files": {"files": ("x.png", b"0" * MAX_BYTES)}}, 200),
        (lambda: {"files": {"files": ("x.png", b"0" * (MAX_BYTES + 1))}}, 413),
        (lambda: {"files": {"files": ("x.png", b"0" * (MAX_BODY + 1))}}, 413),
        (lambda: {"files": [("files", ("x.png", b"a")), ("files", ("y.png", b"b"))]}, 400),
        (lambda: {"files": [("files", (f"{n}", b"")) for n in range(500)]}, 400),
        (lambda: {"data": {"files": "x"}}, 400),
        (lambda: {"content": b"", "headers": {"content-type": "multipart/form-data"}}, 400),
        (lambda: {"content": b"x" * 99, "headers": {"content-type": "multipart/form-data; boundary=b"}}, 400),
        (lambda: {"content": b"--b\r\n\r\n", "headers": {"content-type": "multipart/form-data; boundary=b"}}, 400),
        (lambda: {"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=" + "b" * 9999}}, 400),
        (lambda: {"content": b"x"}, 400),
    ],
)
def test_an_upload_is_one_file_of_a_bounded_size(
    asking: Asking, request_of: Callable[[], dict[str, Any]], status: int
) -> None:
    answer = asking("POST", "/gradio_api/upload", **request_of())
    assert answer.status_code == status
    assert len(asking.uploads) == (status == 200)
    if status == 200:
        (ticket,) = answer.json()
        assert "/" not in ticket
        assert asking.uploads.take(ticket) is not None
    else:
        assert answer.text.endswith((".", ": scale the picture down."))


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "C:\\windows\\x.png", "/etc/x.png", "..", "\x00.png", "a/b\\c.png"]
)
def test_the_name_of_an_upload_is_no_path(asking: Asking, name: str) -> None:
    (ticket,) = asking("POST", "/gradio_api/upload", files={"files": (name, b"x")}).json()
    upload = asking.uploads.take(ticket)
    assert upload is not None
    assert not set("/\\") & set(upload.name)


@pytest.mark.fuzz
@given(st.binary(max_size=300), st.sampled_from(["", "; boundary=b", "; boundary=b; charset=utf-16", "; charset=hex"]))
@example(b'--b\r\ncontent-disposition: form-data; name="files"; filename="x"\r\n\r\nabc', "; boundary=b")
def test_forms_that_are_none_are_refused_and_never_an_error_of_ours(body: bytes, options: str) -> None:
    for content in (body, b'--b\r\ncontent-disposition: form-data; name="files"; filename="' + body):
        headers = Headers({"content-type": "multipart/form-data" + options})

        async def whole(content: bytes = content) -> AsyncIterator[bytes]:
            yield content

        with pytest.raises(RefusedError):
            asyncio.run(read_upload(headers, whole()))


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def never() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {}

    async def read() -> None:
        async for _ in body_parts(never, most=10, announced=0, seconds=0.1):
            pass

    with pytest.raises(RefusedError, match="did not arrive within") as refused:
        asyncio.run(read())
    assert refused.value.status == 408


def test_a_full_queue_is_told_in_a_sentence(asking: Asking) -> None:
    answer = asking("POST", "/gradio_api/queue/join", content=b"full")
    assert answer.status_code == 503
    assert answer.json() == {"detail": FULL}


def test_a_connection_on_which_no_request_begins_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEAD_SECONDS", 0.3)
    with bound_socket("127.0.0.1", None, first=7860) as listening:
        port = listening.getsockname()[1]
        with serving(Guard(behind, Uploads()), listening):
            for begun in (b"", b"GET / HTTP/1.1\r\nHost: 127"):
                with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
                    slow.sendall(begun)
                    assert slow.recv(100) == b""
            assert httpx.get(address_of("127.0.0.1", port), trust_env=False).status_code == 200


def test_a_port_is_taken_by_one_only() -> None:
    with bound_socket("127.0.0.1", None, first=7860) as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} cannot be used"):
            bound_socket("127.0.0.1", port, first=7860)
        with bound_socket("127.0.0.1", None, first=7860) as second:
            assert second.getsockname()[1] != port
