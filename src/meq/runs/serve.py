"""A trained run behind an HTTP port: JSON in, answers out, one request after the other.

    POST /predict     an example, or a list of them, see `meq.runs.questions`; one answer for each
    GET  /health      {"status": "ok"} once the model is loaded
    GET  /version     which run this is, its labels and modalities
    GET  /openapi.json

Nothing that is sent is written to a file. `meq.web` decides who may ask.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import meq.web.needs  # noqa: F401

# isort: split
from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response

from meq.data.findings import DataError
from meq.errors import in_words, terminable
from meq.runs.answers import Answer
from meq.runs.load import TrainedRun
from meq.runs.own_data import encoders_of_run
from meq.runs.predict import predict_examples
from meq.runs.questions import WRONG, Questions
from meq.version import __version__
from meq.web.bodies import Message, Receive, RefusedError, Send, announced_length, replay, whole_body
from meq.web.gate import NOT_KEPT, Gate, Hosts, Password
from meq.web.limits import Limits
from meq.web.server import HOST, address_of, bound_socket, is_local, serving

FIRST_PORT = 8000
"""The first free one from here is taken, unless one is asked for."""
ROUTES = ("/predict", "/health", "/version", "/openapi.json")
EXPOSED = (
    "warning: whoever can reach port {port} of {host} and has the password can use the run and your processor, and "
    "what is sent can be read on the way: put a proxy with TLS before it, or keep it on this machine"
)
NEEDS_PASSWORD = (
    "an endpoint at {host} can be reached from other machines, and needs a password: give --auth-file FILE (or --auth "
    "USER:PASSWORD; in Python `auth`), or leave out the host to keep it on this machine"
)
FAILED = "This failed inside the endpoint, and not by what was sent: whoever runs it finds the reason in its log."
ANSWER = {
    "type": "object",
    "properties": {
        "answer": {"description": "a label, a list of several, or of one per token; a number; null for none"},
        "confidence": {"type": ["number", "null"]},
        "probabilities": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "steps": {"type": ["integer", "null"], "description": "the step the answer was read at"},
        "residuals": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "stopped": {"type": ["string", "null"], "description": "why the iteration ended there"},
        "note": {"type": "string", "description": "what should be known before the answer is relied on"},
    },
}
REFUSAL = {"type": "object", "properties": {"detail": {"type": "string"}}}
STATUSES = {
    400: "no JSON", 401: "no password, or a wrong one", 413: "too much", 421: "a foreign name",
    422: "an example that cannot be read", 503: "too many are waiting", 504: "it took too long",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """An endpoint that is being served."""

    address: str
    port: int


class Endpoint(Gate):
    """Lets requests to the routes through that are not too large; refusals are JSON."""

    noun, realm, command = "endpoint", "meq", "meq serve"

    def __init__(self, app: FastAPI, limits: Limits, *, hosts: Hosts, password: Password | None) -> None:
        super().__init__(app, hosts=hosts, password=password)
        self.most = limits.max_megabytes * 2**20

    def knows(self, path: str) -> bool:
        return path in ROUTES

    async def pass_on(self, scope: Message, receive: Receive, send: Send) -> None:
        body = await whole_body(receive, most=self.most, announced=announced_length(Headers(scope=scope)))
        await self.app(scope, replay(body, receive), send)

    def refusal(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
        return JSONResponse({"detail": message}, status, {**NOT_KEPT, **(headers or {})})


class Answering:
    """Answers requests one at a time, in a thread of its own, and refuses those that would have to wait too long."""

    def __init__(self, run: TrainedRun, limits: Limits, *, steps: int | None = None) -> None:
        self.run, self.limits = run, limits
        run.model_read(steps)  # a depth that cannot be had is said now
        self.questions = Questions(run, limits)
        self.encoders = encoders_of_run(run)
        for encoder in self.encoders.values():
            _ = encoder.loaded  # what is wrong with it is said now
        self._predict = partial(predict_examples, run, encoders=self.encoders, steps=steps)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="meq-serve")
        self._lock, self._waiting = threading.Lock(), 0

    def submit(self, body: bytes) -> Future[Any]:
        """The answer to come; RefusedError where too many wait for theirs."""
        with self._lock:
            if self._waiting >= self.limits.max_waiting:
                raise RefusedError("Too many requests are waiting: try again in a moment.", 503)
            self._waiting += 1
        made = self._pool.submit(self.answer, body)
        made.add_done_callback(self._over)
        return made

    def answer(self, body: bytes) -> Any:
        """What is sent back: an object for one example, a list for several."""
        examples, several = self.questions.read(body)
        try:
            answers = as_json(self._predict(examples), self.run.labels)
        except DataError as error:  # the head of a picture was in order, and the rest is not
            raise RefusedError(in_words(error), WRONG) from error
        return answers if several else answers[0]

    def close(self) -> None:
        """Forget what has not begun; what has is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _over(self, _: Future[Any]) -> None:
        with self._lock:
            self._waiting -= 1


def as_json(answers: Iterable[Answer], labels: Sequence[str]) -> list[dict[str, Any]]:
    """Answers as `meq predict --json` prints the one of an example; they stand in the order of the examples."""
    named = [replace(answer, labels=labels).to_json() for answer in answers]
    return [{name: value for name, value in each.items() if name != "id"} for each in named]


def application(answering: Answering) -> FastAPI:
    """The routes. FastAPI's pages of documentation are left out: they load scripts from elsewhere."""
    app = FastAPI(title="meq", version=__version__, docs_url=None, redoc_url=None, description=__doc__ or "")
    seconds = answering.limits.timeout_seconds
    asked = {"required": True, "content": {"application/json": {"schema": answering.questions.schema()}}}
    answers: dict[int | str, dict[str, Any]] = {
        status: {"description": words, "content": {"application/json": {"schema": REFUSAL}}}
        for status, words in STATUSES.items()
    }
    several = {"anyOf": [ANSWER, {"type": "array", "items": ANSWER}]}
    answers[200] = {"description": "one answer, or a list", "content": {"application/json": {"schema": several}}}

    @app.post("/predict", openapi_extra={"requestBody": asked}, responses=answers)
    async def predict(request: Request) -> Response:
        """One answer per example, in their order."""
        coming = asyncio.wrap_future(answering.submit(await request.body()))
        try:
            return JSONResponse(await asyncio.wait_for(coming, seconds), headers=NOT_KEPT)
        except TimeoutError as error:
            raise RefusedError(f"There was no answer within {seconds:g} seconds: send fewer examples.", 504) from error

    @app.get("/health")
    async def health() -> dict[str, str]:
        """The model is loaded, and requests are taken."""
        return {"status": "ok"}

    @app.get("/version")
    async def version() -> dict[str, Any]:
        """Which run this is."""
        return about(answering.run)

    @app.exception_handler(RefusedError)
    async def refuse(_: Request, error: RefusedError) -> Response:
        again = {"retry-after": "1"} if error.status == 503 else {}
        return JSONResponse({"detail": str(error)}, error.status, {**NOT_KEPT, **again})

    @app.exception_handler(Exception)
    async def fail(_: Request, __: Exception) -> Response:  # the server prints the traceback
        return JSONResponse({"detail": FAILED}, 500, NOT_KEPT)

    return app


def about(run: TrainedRun) -> dict[str, Any]:
    """What a run is, without naming a place on this machine."""
    return {
        "meq": __version__,
        "model": type(run.model).__name__,
        "weights": run.task.weights_sha256,
        "data": Path(run.task.data).name,
        "labels": list(run.labels),
        "modalities": {name: run.task.kinds.get(name, "features") for name in run.task.widths},
    }


@contextmanager
def served(
    run: TrainedRun,
    *,
    host: str = HOST,
    port: int | None = None,
    allow_hosts: Sequence[str] = (),
    password: Password | None = None,
    limits: Limits = Limits(),  # noqa: B008
    steps: int | None = None,
) -> Iterator[ServedRun]:
    """The endpoint of a run, for as long as the block lasts; arguments as those of `serve`."""
    hosts = Hosts.of(allow_hosts)
    if password is None and not is_local(host):
        raise ValueError(NEEDS_PASSWORD.format(host=host))
    with bound_socket(host, port, first=FIRST_PORT) as listening:
        answering = Answering(run, limits, steps=steps)
        gate = Endpoint(application(answering), limits, hosts=hosts, password=password)
        try:
            with serving(gate, listening):
                found = int(listening.getsockname()[1])
                try:
                    yield ServedRun(address=address_of(host, found), port=found)
                finally:
                    gate.close()
        finally:
            answering.close()


def serve(
    run: TrainedRun,
    *,
    host: str = HOST,
    port: int | None = None,
    allow_hosts: Sequence[str] = (),
    password: Password | None = None,
    limits: Limits = Limits(),  # noqa: B008
    steps: int | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until Ctrl-C or SIGTERM, which end it cleanly. Without a port the first free one from 8000 on is taken.

    Other machines can reach it only if `host` says so, and then it needs a password. `allow_hosts` are the names (NAME
    or NAME:PORT) that it answers to besides those of this machine, as that of a proxy.
    """
    rules = {"host": host, "port": port, "allow_hosts": allow_hosts, "password": password}
    with terminable(), served(run, limits=limits, steps=steps, **rules) as endpoint:  # type: ignore[arg-type]
        if not is_local(host):
            print(EXPOSED.format(port=endpoint.port, host=host), file=sys.stderr)
        say(f"serving {run.folder}: {endpoint.address}  (Ctrl-C ends it)")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            say("the endpoint was ended")
