"""The Equilibrium Explorer without its page: what is let in, what is shown, and who can reach it."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import re
import socket
import struct
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import httpx
import pytest
import torch
import typer
from explained_run import STEPS, explanations, run_folder, small_scenes, trained_run
from PIL import Image, ImageChops
from typer.testing import CliRunner

from meq.cli.use import app_command
from meq.data import DataError
from meq.data.content import PictureFile
from meq.data.pictures import MAX_PIXELS
from meq.runs.analyze import IterationSpectrum
from meq.runs.explain import Explainer
from meq.viz.app.explorer import MAX_CHARACTERS, Explorer, Pair, check_showable
from meq.viz.app.guard import is_needed
from meq.viz.app.panels import _answer_chart, look_panel, panel
from meq.viz.app.server import environment, served
from meq.viz.app.uploads import (
    KEPT_BYTES,
    KEPT_SECONDS,
    LONGEST,
    MAX_BYTES,
    Upload,
    UploadedPicture,
    Uploads,
    admit_upload,
)
from meq.web.bodies import RefusedError
from meq.web.server import is_local

FRAME = re.compile(r'<div class="frame" data-k="(\d+)"')
CHANCE = re.compile(r'<span class="chance" data-label="(\w+)">([\d.]+)</span>')


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    made = Explorer(trained_run())
    yield made
    made.close()


@pytest.fixture
def _swept() -> Iterator[None]:
    """Gradio warns of its own making, and leaves event loops open: they are swept up before the next test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        with suppress(RuntimeError):  # there is none
            asyncio.get_event_loop().close()
        asyncio.set_event_loop(None)
        gc.collect()


def as_bytes(picture: Image.Image, form: str = "PNG") -> bytes:
    out = io.BytesIO()
    picture.save(out, form)
    return out.getvalue()


def png_of(width: int, height: int) -> bytes:
    """A few bytes that say they are a picture of that size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


# -- what is let in ----------------------------------------------------------------------------------------------------


def sent(data: bytes, name: str = "x.png") -> UploadedPicture:
    """The picture, uploaded and asked for."""
    uploads = Uploads()
    try:
        return admit_upload(uploads, uploads.keep(Upload(name, data)))
    finally:
        assert len(uploads) == 0  # whatever came of it


def test_an_uploaded_picture_is_read_as_the_same_file_on_disk_is(tmp_path: Path) -> None:
    scene = small_scenes().splits["test"][0].content["image"].open()
    kept = tmp_path / "kept.png"
    kept.write_bytes(as_bytes(scene))
    picture = sent(as_bytes(scene))
    assert picture.open().tobytes() == PictureFile(kept, tmp_path).open().tobytes()
    assert picture.fingerprint() == PictureFile(kept, tmp_path).fingerprint()


def test_a_ticket_serves_once_and_the_same_picture_sent_twice_is_two_uploads() -> None:
    uploads, data = Uploads(), as_bytes(Image.new("RGB", (4, 4)))
    first, second = (uploads.keep(Upload("same.png", data)) for _ in range(2))
    assert first != second
    assert admit_upload(uploads, first).data == data
    assert admit_upload(uploads, second).data == data
    for ticket in (first, "never drawn", "/etc/passwd", "", None, 7, {"path": "/etc/passwd"}):
        with pytest.raises(RefusedError, match="did not arrive, or waited too long: upload it again"):
            admit_upload(uploads, ticket)


def test_uploads_that_nobody_asks_for_are_forgotten_and_do_not_fill_the_memory() -> None:
    now = [0.0]
    uploads = Uploads(clock=lambda: now[0])
    large = Upload("large.png", bytes(MAX_BYTES))
    tickets = [uploads.keep(large) for _ in range(KEPT_BYTES // MAX_BYTES)]
    with pytest.raises(RefusedError, match="Too many pictures are waiting"):
        uploads.keep(large)
    now[0] = KEPT_SECONDS + 1
    uploads.sweep()
    assert len(uploads) == 0
    assert uploads.take(tickets[0]) is None
    assert uploads.take(uploads.keep(large)) is large


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_large_picture_is_scaled_while_it_is_read(form: str) -> None:
    gradient = Image.linear_gradient("L").resize((6000, 3000)).convert("RGB")
    picture = sent(as_bytes(gradient, form))
    assert picture.open().size == (LONGEST, LONGEST // 2)
    expected = gradient.resize((LONGEST, LONGEST // 2))
    difference = ImageChops.difference(picture.open(), expected)
    assert max(band[1] for band in difference.getextrema()) <= 8


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"just words, whatever the name says", "not a picture: choose a PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
        (as_bytes(Image.effect_noise((64, 64), 50), "JPEG")[:900], "damaged"),
        (png_of(9000, 9000), f"9,000 x 9,000 pixels; at most {MAX_PIXELS:,} are decoded: scale it down"),
        (png_of(60_000, 60_000), "scale it down"),
    ],
    ids=["empty", "text", "svg", "cut short", "bomb", "huge bomb"],
)
def test_what_is_not_a_picture_or_too_large_is_refused_with_advice(data: bytes, said: str) -> None:
    with pytest.raises(RefusedError, match=re.escape(said)):
        sent(data)


def test_a_file_of_too_many_bytes_is_refused_before_it_is_read() -> None:
    with pytest.raises(RefusedError, match="at most 10 MB are taken: scale it down"):
        sent(b"0" * (MAX_BYTES + 1))


def test_the_name_of_an_upload_cannot_write_over_what_stands_around_it() -> None:
    picture = sent(as_bytes(Image.new("RGB", (4, 4))), "gnp.\u202eexe\x1b[2J" + "a" * 100_000)
    assert len(str(picture)) < 200
    assert not set("\u202e\x1b") & set(str(picture))


@pytest.mark.parametrize(
    ("caption", "said"),
    [
        ("", "The caption is empty: type a sentence"),
        (" \n\t ", "The caption is empty"),
        ("a" * (MAX_CHARACTERS + 1), "shorten it"),
        ("half \ud83d a smile", "type it again"),
        ("there is a red thing " * 20, "it would see 64 tokens, up to “…"),
    ],
    ids=["empty", "blank", "absurd", "half a character", "beyond the encoder"],
)
def test_a_caption_that_cannot_be_read_whole_is_refused(explorer: Explorer, caption: str, said: str) -> None:
    pair = explorer.pairs[0]
    with pytest.raises(RefusedError, match=re.escape(said)):
        explorer.look(pair.picture, caption, None, 0)
    if caption.strip():
        with pytest.raises(RefusedError, match="The other caption"):
            explorer.look(pair.picture, pair.caption, caption, 0)


def test_a_look_needs_a_picture_and_a_measure_needs_a_look(explorer: Explorer) -> None:
    with pytest.raises(RefusedError, match="upload one, or choose an example"):
        explorer.look(None, "a caption", None, 0)
    with pytest.raises(RefusedError, match="look at a picture and a caption first"):
        explorer.measure("spectrum", None)


def test_a_model_of_other_modalities_gets_a_sentence() -> None:
    of_numbers = Explainer(trained_run(), encoders={})
    with pytest.raises(ValueError, match=r"one picture and one text, and this one was trained on 'image' \(features\)"):
        check_showable(of_numbers)


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_every_step_is_on_the_page_with_the_numbers_of_the_library(explorer: Explorer) -> None:
    pair = explorer.pairs[0]
    _, shown = explorer.look(pair.picture, pair.caption, pair.other, 1)
    computed = explorer.explainer.contrast(explorer.explainer.pair(pair.picture, pair.caption), pair.other)
    frames = FRAME.split(shown)[1:]
    steps, contents = list(map(int, frames[::2])), frames[1::2]
    assert steps == 2 * list(range(2 * STEPS + 1))
    for place, content in enumerate(contents):
        found = computed.matched if place < len(steps) // 2 else computed.mismatched
        assert found.probabilities is not None
        expected = [f"{chance:.3f}" for chance in found.probabilities[found.row(steps[place])].tolist()]
        assert CHANCE.findall(content) == list(zip(found.labels, expected, strict=True))
    assert shown.count("hidden>") == len(steps) - 2  # step 1 of either caption is seen


def test_what_people_type_is_shown_and_never_run(explorer: Explorer) -> None:
    pair = explorer.pairs[0]
    nasty = "<script>alert(1)</script> \" ' & <img src=x onerror=alert(1)> ${1+1} {{x}}"
    asked, shown = explorer.look(pair.picture, nasty, None, 0)
    for text in (shown, explorer.measure("spectrum", asked)):
        assert "<script" not in text
        assert "<img src=x" not in text
    assert "&lt;" in shown
    assert "&amp;" in shown


def test_a_number_is_shown_as_one_and_of_many_classes_the_likeliest() -> None:
    found = explanations()[0]
    number = replace(found, head="score", labels=("value",), logits=found.logits[:, :1], explained=0, target=None)
    shown = look_panel([number], 0)
    assert f'<p class="score">value: <b>{number.said(0)}</b></p>' in shown
    assert "<polyline" in shown
    many = replace(found, labels=tuple(map(str, range(9))), logits=torch.arange(9.0).expand(len(found.steps), 9))
    shown = look_panel([many], 0)
    assert "and 3 other answers" in shown
    assert [label for label, _ in CHANCE.findall(shown)[:6]] == ["8", "7", "6", "5", "4", "3"]


def test_a_chart_of_very_many_steps_has_all_of_them() -> None:
    found = explanations()[0]
    steps = tuple(range(800))
    row = [0] * len(steps)
    views = {name: replace(view, attribution=view.attribution[row]) for name, view in found.views.items()}
    residuals = {name: values[row] for name, values in found.residuals.items()}
    long = replace(found, steps=steps, logits=found.logits[row], residuals=residuals, views=views)
    chart = panel("chart", _answer_chart(long, {0: "red"}), 0)
    (points,) = re.findall(r'<polyline points="([^"]*)"', chart)
    assert len(points.split()) == len(steps)


def test_people_at_the_same_time_get_what_each_would_get_alone(explorer: Explorer) -> None:
    pictures = [example.content["image"] for example in small_scenes().splits["test"][::9]]
    captions = ["there is a red thing", "a green circle is left of that", "yellow"]
    requests = [(picture, caption) for picture in pictures for caption in captions]
    alone = [explorer.explain(*request)[0] for request in requests]
    asked = Pair(picture=pictures[0], caption=captions[0])
    with ThreadPoolExecutor(6) as pool:
        measured = pool.submit(explorer.measure, "influence", asked)
        together = list(pool.map(lambda request: explorer.explain(*request)[0], requests))
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a.logits, b.logits, rtol=0, atol=1e-5)
        for name in a.views:
            torch.testing.assert_close(a.views[name].shares, b.views[name].shares, rtol=0, atol=1e-3)
            assert a.views[name].content == b.views[name].content or name == "image"
    assert measured.result() == explorer.measure("influence", asked)
    assert not any(module.training for module in explorer.run.model.modules())


def test_examples_have_different_pictures_and_another_caption_to_compare(explorer: Explorer) -> None:
    assert len(explorer.pairs) >= 3
    assert len({str(pair.picture) for pair in explorer.pairs}) == len(explorer.pairs)
    assert all(pair.caption != pair.other for pair in explorer.pairs)
    assert explorer.look_at_example(1) is explorer.look_at_example(1)


@pytest.mark.parametrize("error", [DataError("photos.csv is not here"), FileNotFoundError("photos.csv is not here")])
def test_data_that_cannot_be_read_again_leave_the_page_without_examples(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def moved(run: object, **_: object) -> object:
        raise error

    monkeypatch.setattr("meq.runs.pairs.raw_data", moved)
    explorer = Explorer(trained_run())
    assert explorer.pairs == []
    assert "photos.csv is not here" in str(explorer.no_pairs)


@pytest.mark.parametrize("error", [ValueError("shapes differ"), ImportError("cannot import name"), KeyError("image")])
def test_a_fault_of_ours_does_not_look_like_data_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(run: object, **_: object) -> object:
        raise error

    monkeypatch.setattr("meq.runs.pairs.raw_data", broken)
    with pytest.raises(type(error)):
        Explorer(trained_run())


def test_the_measures_say_in_words_what_they_found(explorer: Explorer) -> None:
    asked = Pair(picture=explorer.pairs[0].picture, caption=explorer.pairs[0].caption)
    spectrum = explorer.measure("spectrum", asked)
    assert "the largest modulus is" in spectrum
    assert "image/svg+xml" in spectrum
    assert explorer.measure("influence", asked).count("image/svg+xml") == 2


def test_the_radius_is_told_for_the_map_and_for_the_damped_step() -> None:
    found = IterationSpectrum(values=torch.tensor([[-1.2 + 0j, 0.5j]], dtype=torch.complex128), damping=0.5)
    undamped, damped = found.in_words()
    assert "1.200, not below 1" in undamped
    assert "0.559, below 1" in damped
    assert "shrinks to a tenth in about 4 steps" in damped
    assert len(replace(found, damping=None).in_words()) == 1


# -- who can reach it --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file=https://example.org/",
        "/gradio_api/proxy=https://example.org/",
        "/gradio_api/info",
        "/gradio_api/process_recording",
        "/gradio_api/vibe-edit/",
        "/gradio_api/startup-events",
        "/gradio_api/heartbeat/../info",
        "/gradio_api/upload/../info",
        "/assets/%2e%2e/config",
        "/assets/..\\..\\config",
        "/assets/x\x00.js",
        "/assets//etc/passwd",
        "//etc/passwd",
        "/static/C:\\windows",
        "/monitoring",
        "/docs",
        "/assets/../../config",
    ],
)
def test_what_the_page_does_not_need_is_closed(path: str) -> None:
    assert not is_needed(path)


def test_only_this_machine_counts_as_local() -> None:
    assert all(map(is_local, ("127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.2")))
    assert not any(map(is_local, ("0.0.0.0", "::", "192.168.0.7", "example.org")))


def test_the_environment_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEQ_TEST_KEPT", "before")
    with environment({"MEQ_TEST_KEPT": "within", "MEQ_TEST_NEW": "within"}):
        assert os.environ["MEQ_TEST_NEW"] == "within"
    assert os.environ["MEQ_TEST_KEPT"] == "before"
    assert "MEQ_TEST_NEW" not in os.environ


@pytest.mark.usefixtures("_swept")
def test_a_served_page_talks_to_nobody_else_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    called, connect = [], socket.socket.connect
    monkeypatch.setattr(
        socket.socket, "connect", lambda self, address: (called.append(address), connect(self, address))[1]
    )
    with served(trained_run()) as page:
        assert page.address.startswith("http://127.0.0.1:")
        assert page.folder.is_dir()
        answer = httpx.get(page.address)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert httpx.get(f"{page.address}gradio_api/file={run_folder() / 'record.json'}").status_code == 404
        assert httpx.get(f"{page.address}gradio_api/info").status_code == 404
    assert not page.folder.exists()
    outside = [address for address in called if isinstance(address, tuple) and not is_local(address[0])]
    assert called
    assert not outside


@pytest.mark.usefixtures("_swept")
def test_beyond_this_machine_the_command_needs_a_password_and_says_what_that_is_worth(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(import_module("meq.cli.use"), "_wait", lambda stop: None)
    command = typer.Typer()
    command.command()(app_command)
    beyond = [str(run_folder()), "--host", "0.0.0.0"]
    for options, said in (
        (beyond, "needs a password: give --auth-file FILE"),
        ([*beyond, "--auth", "somebody"], "no name before it: give USER:PASSWORD"),
        ([*beyond, "--auth", "somebody:short"], "too short"),
        ([*beyond, "--auth", "a:long enough", "--auth-file", str(tmp_path / "x")], "there are two passwords"),
        ([*beyond, "--auth-file", str(tmp_path / "missing")], "the password cannot be read from"),
        ([*beyond, "--auth", "a:long enough", "--allow-host", "http://x"], "'http://x' is not the name of a host"),
    ):
        result = CliRunner().invoke(command, options)
        assert result.exit_code == 1, result.output
        assert said in result.output.replace("\n", " ")
    result = CliRunner().invoke(command, beyond, env={"MEQ_APP_AUTH": "somebody:long enough"})
    assert result.exit_code == 0, result.output
    assert "Equilibrium Explorer: http://localhost:" in result.output
    assert "put a proxy with TLS before it" in result.output
    assert "long enough" not in result.output


def test_in_python_too_a_page_beyond_this_machine_needs_a_password() -> None:
    with pytest.raises(ValueError, match="needs a password"), served(trained_run(), host="0.0.0.0"):
        pass


@pytest.mark.usefixtures("_swept")
def test_a_port_that_is_taken_is_an_error_in_a_sentence_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} cannot be used at 127.0.0.1"), served(trained_run(), port=port):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_run_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    command = typer.Typer()
    command.command()(app_command)
    result = CliRunner().invoke(command, [str(tmp_path)])
    assert result.exit_code == 1
    assert "is not the folder of a trained run" in result.output
