"""`meq serve`: a real server in a process of its own, and the refusals of an endpoint without a network."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from runs.mixed import ONCE, SMALL, mixed_run, png
from studies.photo_table import COLOURS, write_rows

from meq.data.request import DataRequest
from meq.runs import TrainedRun, load_run, train_on
from meq.runs.questions import Questions
from meq.runs.serve import FAILED, Answering, Endpoint, application, served
from meq.web.gate import Hosts, Password
from meq.web.limits import Limits

SECRET = ("somebody", "long enough")
COMMAND = "import sys; from meq.cli import main; sys.argv = ['meq', *sys.argv[1:]]; main()"
CLOSE = {"rel": 1e-4, "abs": 1e-5}


def written(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serving")
    mixed_run(folder)
    return folder


@pytest.fixture(scope="module")
def run(place: Path) -> TrainedRun:
    return load_run(place / "run")


@dataclass
class Server:
    address: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    """`meq serve` with a password; asked to end, it does, and its errors are shown by no traceback."""
    secret = place / "secret"
    secret.write_text(":".join(SECRET))
    secret.chmod(0o600)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", str(place / "run"), "--auth-file", str(secret), "--max-batch", "8",
         "--max-megabytes", "1", "--max-megapixels", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "http://127.0.0.1:" in line, line + process.stdout.read()
    yield Server(line.split(": ")[1].split()[0], process)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, rest
    assert "Traceback" not in rest


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, auth=SECRET, trust_env=False, timeout=60) as made:
        yield made


def example(colour: str = "red", **others: Any) -> dict[str, Any]:
    return {"photo": written(png(COLOURS[colour])), "caption": "it is red", "sizes": [1, 2], **others}


# -- answers -----------------------------------------------------------------------------------------------------------


def test_one_example_and_a_batch_are_answered_as_by_predict(client: httpx.Client, place: Path, run: TrainedRun) -> None:
    rows = [["red.png", "it is red", "1 2"], ["blue.png", "", "1 2"], ["", "it is red", ""]]
    table = write_rows(place / "new.csv", ["photo", "caption", "sizes"], rows)
    expected = run.predict_table(table).rows()
    asked = [example(), example("blue", caption=None), {"caption": "it is red"}]
    answers = client.post("predict", json=asked).raise_for_status().json()
    one = client.post("predict", json=asked[0]).raise_for_status().json()
    assert [each["answer"] for each in answers] == [row["answer"] for row in expected]
    for found, row in zip([*answers, one], [*expected, expected[0]], strict=True):
        assert found["confidence"] == pytest.approx(row["confidence"], **CLOSE)
        assert found["probabilities"] == pytest.approx({"no": row["p(no)"], "yes": row["p(yes)"]}, **CLOSE)
        assert (found["steps"], found["stopped"], found["note"]) == (row["steps"], row["stopped"], row["note"])
    assert answers[0]["residuals"]["photo"] == pytest.approx(expected[0]["residual(photo)"], rel=1e-3)
    assert answers[2]["residuals"]["photo"] is None
    assert answers[2]["note"] == "photo is missing; sizes is missing"


def test_many_at_once_each_get_their_own_answer(client: httpx.Client) -> None:
    asked = [example(colour) for colour in COLOURS]
    alone = [client.post("predict", json=each).json() for each in asked]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda k: client.post("predict", json=asked[k % 3]), range(12)))
    assert [each.status_code for each in answers] == [200] * 12
    assert [each.json() for each in answers] == alone * 4


def test_health_version_and_the_description(client: httpx.Client, place: Path) -> None:
    assert client.get("health").json() == {"status": "ok"}
    version = client.get("version").json()
    assert version["labels"] == ["no", "yes"]
    assert version["modalities"] == {"photo": "image", "caption": "text", "sizes": "features"}
    assert str(place) not in json.dumps(version)
    described = client.get("openapi.json").json()
    asked = described["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert list(asked["anyOf"][0]["properties"]) == ["photo", "caption", "sizes"]
    assert asked["anyOf"][1]["maxItems"] == 8
    assert client.get("docs").status_code == 404, "its pages would load scripts from elsewhere"


# -- who may ask -------------------------------------------------------------------------------------------------------


def test_without_the_password_and_under_a_foreign_name_nothing_is_answered(server: Server) -> None:
    with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as stranger:
        for path in ("predict", "health", "version", "openapi.json"):
            assert stranger.get(path).status_code == 401
        wrong = stranger.post("predict", json=example(), auth=("somebody", "guessed it"))
        assert wrong.status_code == 401
        assert wrong.json() == {"detail": "This endpoint needs a name and a password."}
        rebound = stranger.post("predict", json=example(), auth=SECRET, headers={"Host": "evil.example"})
        assert rebound.status_code == 421
        assert "meq serve --allow-host" in rebound.json()["detail"]
        elsewhere = stranger.post("predict", json=example(), auth=SECRET, headers={"Origin": "http://evil.example"})
        assert elsewhere.status_code == 403


def test_beyond_this_machine_it_needs_a_password(run: TrainedRun) -> None:
    words = r"at 0\.0\.0\.0 can be reached from other machines, and needs a password"
    with pytest.raises(ValueError, match=words), served(run, host="0.0.0.0"):
        pass
    with pytest.raises(ValueError, match="the password is too short"):
        run.serve(auth="a:b")


# -- what is refused ---------------------------------------------------------------------------------------------------

BROKEN = png()[:60]
UNREADABLE = r"example 2, 'photo': not a readable picture"
REFUSED = {
    "no JSON": (b"{", 400, r"no JSON"),
    "twice": (b'{"caption": "a", "caption": "b"}', 400, r"the key 'caption' is there twice"),
    "NaN": (b'{"sizes": [NaN, 1]}', 400, r"NaN is not JSON"),
    "deep": (b"[" * 5000, 400, r"no JSON|nested"),
    "a text": (b'"hello"', 422, r"the example is no object"),
    "nothing": (b"[]", 422, r"empty"),
    "too many": ([{"caption": "a"}] * 9, 413, r"9 examples; at most 8"),
    "wrong name": ([{"caption": "a"}, {"captoin": "a"}], 422, r"example 2 has 'captoin'.*did you mean 'caption'"),
    "no content": ([{"caption": None}], 422, r"example 1 holds nothing to answer from: give it 'photo' or 'caption'"),
    "no text": ({"caption": 3}, 422, r"the example: 'caption' is a number, and a text is asked for"),
    "no list": ({"sizes": "1 2"}, 422, r"'sizes' is a text, and a list of numbers"),
    "no number": ({"sizes": [1, "x"]}, 422, r"'sizes' holds something that is no number"),
    "too wide": ([{"sizes": [1, 2, 3]}], 422, r"example 1: 'sizes' holds 3 numbers, the model was trained on 2"),
    "huge": ({"sizes": [1e300, 1]}, 422, r"'sizes'"),
    "half a character": (b'{"caption": "\\ud800"}', 422, r"caption"),
    "no base64": ([{"photo": "***"}], 422, r"example 1, 'photo': no base64"),
    "no picture": (
        [{"caption": "a"}, {"photo": written(b"hello")}],
        422,
        r"example 2, 'photo': not a readable picture",
    ),
    "half a picture": ([example(), example(photo=written(BROKEN))], 422, UNREADABLE),
    "large picture": ({"photo": written(png(size=(1200, 1000)))}, 413, r"the example, 'photo': 1,200 x 1,000 pixels"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_a_sentence_that_names_it(client: httpx.Client, case: str) -> None:
    asked, status, words = REFUSED[case]
    sent = {"content": asked} if isinstance(asked, bytes) else {"json": asked}
    answer = client.post("predict", **sent)
    assert answer.status_code == status, answer.text
    assert re.search(words, answer.json()["detail"]), answer.text
    assert "Traceback" not in answer.text


def test_a_request_that_is_too_large_is_refused_whatever_it_announces(client: httpx.Client) -> None:
    large = b'{"caption": "' + b"a" * (2**20 + 1) + b'"}'
    assert client.post("predict", content=large).status_code == 413
    parts = iter([large[: 2**19], large[2**19 :]])  # in chunks, which announce nothing
    assert client.post("predict", content=parts).status_code == 413
    assert client.get("predict").status_code == 405
    assert client.request("DELETE", "predict").status_code == 405
    assert client.get("../run/record.json").status_code == 404


# -- sounds, regions and choices ---------------------------------------------------------------------------------------


def test_a_sound_is_answered_as_its_file_is_and_bounded(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra: pip install 'meq[encoders]'")
    from encoders.models import save_wav2vec2, write_tone

    for k in range(4):
        write_tone(tmp_path / f"{k}.wav", 300 if k % 2 else 1200, seconds=0.1 + 0.01 * k)
    rows = [[f"{k % 4}.wav", f"{k % 3}", str(k % 2), "train" if k < 16 else "dev"] for k in range(24)]
    table = write_rows(tmp_path / "tones.csv", ["clip", "size", "y", "part"], rows)
    asked = DataRequest(data=str(table), audios=("clip",), vectors=("size",), label="y", split="part")
    asked = replace(asked, task="classes")
    encoders = {"audio": str(save_wav2vec2(tmp_path / "small-wav2vec2"))}
    run = train_on(asked, tmp_path / "run", encoders=encoders, shape=SMALL, config=ONCE)
    (expected,) = run.predict([{"clip": str(tmp_path / "1.wav"), "size": 2}], root=tmp_path)
    sound, long = (tmp_path / "1.wav").read_bytes(), write_tone(tmp_path / "long.wav", 300, seconds=1.5).read_bytes()
    with served(run, limits=Limits(max_seconds=1)) as endpoint, httpx.Client(trust_env=False, timeout=60) as client:
        at = endpoint.address + "predict"
        answer = client.post(at, json={"clip": written(sound), "size": [2]}).raise_for_status().json()
        assert answer["confidence"] == pytest.approx(expected.confidence, **CLOSE)
        assert answer["answer"] == expected.answer
        for value, status, words in (
            (written(long), 413, "the example, 'clip': 1.5 seconds; at most 1 are taken"),
            (written(sound[:30]), 422, "the example, 'clip': not a readable sound"),
            (written(png()), 422, "it is no WAV file"),
            ("***", 422, "send the bytes of the sound's file as base64"),
            (3, 422, "a number, and a sound in base64 is asked for"),
        ):
            refused = client.post(at, json={"clip": value})
            assert (refused.status_code, words in refused.json()["detail"]) == (status, True), refused.text


def test_choices_in_words_and_regions_of_a_picture_are_answered_as_those_of_the_data(tmp_path: Path) -> None:
    from data.folders import vcr_folder

    asked = DataRequest(data="vcr", root=vcr_folder(tmp_path / "vcr"))
    few = replace(ONCE, batch_size=2)
    encoders = {"regions": "patches", "text": "words"}
    run = train_on(asked, tmp_path / "run", encoders=encoders, shape=SMALL, config=few)
    example = asked.open().splits["dev"][1]
    (expected,) = run.predict([example])
    regions = example.content["image"]
    scene = {"picture": written(regions.picture.path.read_bytes()), "boxes": [list(box) for box in regions.boxes]}
    sent = {"image": {**scene, "names": list(regions.names)}, "text": list(example.content["text"])}
    with served(run, limits=Limits(max_regions=3)) as endpoint, httpx.Client(trust_env=False, timeout=60) as client:
        at = endpoint.address + "predict"
        both = client.post(at, json=[sent, {**sent, "image": None}]).raise_for_status().json()
        assert both[0]["answer"] == expected.answer
        assert both[0]["confidence"] == pytest.approx(expected.confidence, **CLOSE)
        assert both[1]["note"] == "image is missing"
        for changed, status, words in (
            ({"text": "one text"}, 422, "the example has no choices: give 'text' a list of texts"),
            ({"text": ["one"]}, 422, "'text' has 1 choices; from 2 to 64"),
            ({"text": ["one", 2]}, 422, "'text' is a number, and a text is asked for"),
            ({"text": ["one", ["two"]]}, 422, "a choice of 'text' is no text"),
            ({"image": scene["picture"]}, 422, "regions are asked for"),
            ({"image": {**scene, "boxes": [[1, 2, 3]]}}, 422, "a box is a list of four numbers"),
            ({"image": {**scene, "boxes": [[9, 2, 3, 4]]}}, 422, "right and bottom are the larger"),
            ({"image": {**scene, "boxes": [[900, 900, 999, 999]]}}, 422, "lies outside of 60 x 40"),
            ({"image": {**scene, "boxes": [[1, 1, 9, 9]] * 4}}, 413, "4 regions; at most 3 are taken"),
            ({"image": {**scene, "names": ["lamp"]}}, 422, "one for each of the boxes"),
        ):
            refused = client.post(at, json={**sent, **changed})
            assert (refused.status_code, words in refused.json()["detail"]) == (status, True), refused.text
        uneven = client.post(at, json=[sent, {"text": ["one", "two"]}])
        assert "example 2 has other choices than the rest" in uneven.json()["detail"]
        schema = client.get(endpoint.address + "openapi.json").text
        assert '"maxItems":3' in schema


def test_choices_that_are_no_texts_are_refused_at_the_start(run: TrainedRun) -> None:
    numbers = replace(run, task=replace(run.task, head="choices", kinds={"photo": "image"}))
    with pytest.raises(ValueError, match="chooses among answers that are no texts"):
        Questions(numbers, Limits())


# -- without a network -------------------------------------------------------------------------------------------------


def ask(answering: Answering, *bodies: Any) -> list[httpx.Response]:
    """Answers to requests that come at the same time."""
    endpoint = Endpoint(application(answering), answering.limits, hosts=Hosts(), password=None)

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=endpoint, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return list(await asyncio.gather(*(client.post("predict", json=body) for body in bodies)))

    try:
        return asyncio.run(all_of_them())
    finally:
        answering.close()


def test_too_many_that_wait_and_one_that_takes_too_long_are_told_so(run: TrainedRun) -> None:
    slow = Answering(run, Limits(max_waiting=2, timeout_seconds=0.2))
    slow.answer = lambda body: time.sleep(0.5)  # type: ignore[method-assign]
    answers = ask(slow, *[{"caption": "a"}] * 3)
    assert sorted(each.status_code for each in answers) == [503, 504, 504]
    (full,) = (each for each in answers if each.status_code == 503)
    assert full.headers["retry-after"] == "1"
    assert "try again" in full.json()["detail"]


def test_a_failure_of_ours_shows_nothing_of_the_inside(run: TrainedRun) -> None:
    broken = Answering(run, Limits())
    broken._predict = lambda examples: 1 / 0  # type: ignore[assignment]
    (answer,) = ask(broken, {"caption": "a"})
    assert answer.status_code == 500
    assert answer.json() == {"detail": FAILED}


def test_limits_and_passwords_are_checked_at_the_outset() -> None:
    with pytest.raises(ValueError, match="`max_batch` must be more than 0"):
        Limits(max_batch=0)
    assert Password.of(":".join(SECRET)).opens("Basic " + written(":".join(SECRET).encode()))
