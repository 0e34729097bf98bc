from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import typer
from explained_run import STEPS, explainer, run_folder, small_scenes, trained_run
from PIL import Image
from typer.testing import CliRunner

import meq
from meq.cli.understand import explain

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(explain)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    small_scenes().splits["test"][0].content["image"].open().save(tmp_path / "scene.png")  # type: ignore[union-attr]
    return tmp_path / "scene.png"


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_pair_is_told_in_the_terminal_and_drawn(picture: Path, tmp_path: Path) -> None:
    out = tmp_path / "drawn"
    code, output, errors = run(
        picture, "there is a red thing", "--model", run_folder(), "--out", out, "--steps", "3", "--animation", "webp"
    )
    assert code == 0, errors
    expected = explainer()([explainer().pair(picture, "there is a red thing")], steps=range(4))[0]
    assert output.startswith(f"scene.png: {expected.answer}\n\n{expected}\n")
    assert [f"drawn: {out / name}" for name in ("explanation.png", "explanation.svg", "explanation.webp")] == (
        output.splitlines()[-3:]
    )
    assert sorted(file.name for file in out.iterdir()) == ["explanation.png", "explanation.svg", "explanation.webp"]
    with Image.open(out / "explanation.webp") as frames:
        assert frames.n_frames == 4


def test_another_text_is_compared_and_json_holds_the_numbers(
    picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = ("--instead", "there is a blue star", "--steps", "1", "--method", "grad-cam", "--json")
    code, output, errors = run(picture, "there is a red thing", "--model", run_folder(), *other)
    assert code == 0, errors
    found = json.loads(output)
    assert found["instead"] == {"text": "there is a blue star"}
    assert found["matched"]["steps"] == [0, 1, 2]
    assert found["mismatched"]["modalities"]["text"]["text"] == "there is a blue star"
    assert [Path(file).name for file in found["files"]] == [
        *("explanation.png", "explanation.svg", "explanation.gif", "contrast.png", "contrast.svg")
    ]
    assert all((tmp_path / file).is_file() for file in found["files"])


def test_the_answer_of_a_token_is_explained_if_it_is_asked_for(
    picture: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = dataclasses.replace(trained_run().task, head="tokens")
    model = meq.MutualEquilibrium(task.widths, 3, dim=8, heads=2, steps=STEPS, head_width=8, head="tokens").eval()
    answering = dataclasses.replace(trained_run(), model=model, task=task)
    monkeypatch.setattr("meq.runs.load.load_run", lambda _: answering)
    monkeypatch.setattr("meq.viz.animation.draw_explanation", lambda *_, **__: [])
    always = (picture, "there is a red thing", "--model", "tokens", "--out", tmp_path / "drawn", "--steps", "2")
    for token in ("image:4", "text:2"):
        code, output, errors = run(*always, "--token", token, "--json")
        assert code == 0, errors
        assert json.loads(output)["token"] == token.replace(":", " ")
    code, _, errors = run(*always, "--token", "text:99")
    assert code == 1
    assert "cannot be 'text:99': of the tokens of 'text', example 'scene.png' has 5" in errors


def test_what_is_wrong_is_one_sentence_and_nothing_is_written(picture: Path, tmp_path: Path) -> None:
    out = tmp_path / "drawn"
    note = tmp_path / "note.png"
    note.write_text("no picture")
    always = ("--model", run_folder(), "--out", out)
    cases = {
        "did you mean 'rollout'": (picture, "a text", *always, "--method", "rolout"),
        "the picture is missing": (tmp_path / "nowhere.png", "a text", *always),
        "not a readable picture": (note, "a text", *always),
        "the tokens of this run do not answer": (picture, "a text", *always, "--token", "image:4"),
        "did you mean 'webp'": (picture, "a text", *always, "--animation", "web"),
        "is not the folder of a trained run": (picture, "a text", "--model", tmp_path, "--out", out),
    }
    for sentence, arguments in cases.items():
        code, output, errors = run(*arguments)
        assert (code, output) == (1, ""), sentence
        assert sentence in errors
        assert errors.startswith("error: ")
        assert len(errors.splitlines()) == 1
    assert not out.exists()
