"""`meq app` as a process of its own, and people who use its page without a browser, by HTTP as the page speaks it."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

COMMAND = "import typer; from meq.cli.use import app_command; typer.run(app_command)"
PATIENCE = 120.0
"""Seconds; on a machine with nothing else to do all of it takes a few."""


@dataclass
class PageServer:
    """A page that is being served by another process."""

    address: str
    folder: Path
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    """All it printed, once it has ended."""

    @property
    def host(self) -> str:
        return self.address.removeprefix("http://").rstrip("/")


@contextmanager
def page_server(run: Path, temporary: Path, *options: str, code: str = COMMAND) -> Iterator[PageServer]:
    """`meq app RUN OPTIONS`; asked to end, it does, and leaves nothing."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(run), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    said = []
    while "Equilibrium Explorer: http://" not in (line := process.stdout.readline()):
        assert line, "".join(said)
        said.append(line)
    (folder,) = temporary.glob("meq-app-*")
    server = PageServer(line.split()[2], folder, process, said)
    try:
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            rest, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        said.append(rest)
    assert process.returncode == 0, rest
    assert not folder.exists()


class Client:
    """Somebody with a session of their own."""

    def __init__(self, address: str, password: str | None = None) -> None:
        user, _, secret = (password or "").partition(":")
        self.http = httpx.Client(
            base_url=address, timeout=PATIENCE, trust_env=False, auth=(user, secret) if password else None
        )
        self.session = secrets.token_hex(8)
        self._events: dict[str, int] = {}

    def close(self) -> None:
        self.http.close()

    def upload(self, data: bytes, name: str = "picture.png") -> str:
        answer = self.http.post("gradio_api/upload", files={"files": (name, data, "image/png")})
        answer.raise_for_status()
        return str(answer.json()[0])

    def admit(self, ticket: str, caption: str, other: str = "", k: float = 0) -> list[Any]:
        """What the page shows after the upload with that ticket: the fields of the handler's answer."""
        return self.ask("meq-upload", "upload", [ticket, None, caption, other, k])

    def look(self, caption: str, other: str = "", k: float = 0) -> list[Any]:
        """Message and view, of the picture that was admitted last."""
        return self.ask("meq-go", "click", [None, caption, other, k])

    def measure(self, which: str) -> list[Any]:
        return self.ask(f"meq-measure-{which}", "click", [None])

    def ask(self, element: str, event: str, data: list[Any]) -> list[Any]:
        """An event of the page, through the queue, as the browser does it."""
        return self.wait_for(self.join(element, event, data))

    def join(self, element: str, event: str, data: list[Any]) -> str:
        answer = self.http.post("gradio_api/queue/join", json=self.question(element, event, data))
        answer.raise_for_status()
        return str(answer.json()["event_id"])

    def question(self, element: str, event: str, data: list[Any]) -> dict[str, Any]:
        place = self.events()[f"{element}:{event}"]
        return {"data": data, "fn_index": place, "session_hash": self.session, "event_data": None, "trigger_id": None}

    def wait_for(self, event: str) -> list[Any]:
        for message in self.messages():
            if message.get("event_id") == event and message["msg"] == "process_completed":
                assert message["success"], message
                return list(message["output"]["data"])
        raise AssertionError("the answer did not come")

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the queue tells this session."""
        with self.http.stream("GET", "gradio_api/queue/data", params={"session_hash": self.session}) as stream:
            for line in stream.iter_lines():
                if line.startswith("data:"):
                    yield json.loads(line[5:])

    def events(self) -> dict[str, int]:
        """The number of each event, by the element's name and what happens to it."""
        if not self._events:
            config = self.http.get("config").json()
            names = {each["id"]: each["props"].get("elem_id") for each in config["components"]}
            for each in config["dependencies"]:
                for target, event in each["targets"]:
                    self._events.setdefault(f"{names.get(target)}:{event}", each["id"])
        return self._events


def preview_bytes(panel: str) -> bytes:
    """The picture in a preview, as the file it is."""
    found = re.search(r"data:image/jpeg;base64,([A-Za-z0-9+/=]+)", panel)
    assert found is not None, panel[:300]
    return base64.b64decode(found[1])
