"""A table with a column of sounds, by the command line: checked, shown, encoded and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from encoders.models import save_wav2vec2, write_tone
from typer.testing import CliRunner

from meq.cli import app
from meq.data.request import DataRequest
from meq.encoders import FeatureStore
from meq.encoders.catalogue import encoders_by_kind
from meq.encoders.encode import encode

pytest.importorskip("transformers", reason="needs the extra: pip install 'meq[encoders]'")

COLUMNS = ["--audio", "clip", "--text", "caption", "--label", "y", "--split", "part"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Six tones; the label is whether the tone is high."""
    for k in range(6):
        write_tone(tmp_path / "clips" / f"{k}.wav", 300 if k % 2 else 1200, seconds=0.1 + 0.01 * k)
    rows = [
        f"clips/{k % 6}.wav,is it {'deep' if k % 4 else 'shrill'},{k % 2},{'train' if k < 24 else 'dev'}"
        for k in range(36)
    ]
    (tmp_path / "tones.csv").write_text("\n".join(["clip,caption,y,part", *rows]) + "\n")
    return tmp_path / "tones.csv"


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def squeezed(output: str) -> list[str]:
    return [" ".join(line.replace("│", " ").split()) for line in output.splitlines()]


def test_sounds_are_checked_and_shown(path: Path) -> None:
    code, output = run("data", "check", path, *COLUMNS)
    assert code == 0, output
    assert "6 different sounds (decoded)" in output
    code, output = run("data", "show", path, *COLUMNS, "--count", "2", "--out", path.parent / "sheet.png")
    assert code == 0, output
    assert "clips/1.wav" in output.replace("\n", "")


def test_sounds_are_encoded_once_with_their_times_and_trained_on(path: Path, tmp_path: Path) -> None:
    model, store = save_wav2vec2(tmp_path / "small-wav2vec2"), tmp_path / "store"
    encoder = ["--audio-encoder", model, "--store", store]
    code, output = run("encode", path, *COLUMNS, *encoder)
    assert code == 0, output
    assert "clip small-wav2vec2 6 6 0" in squeezed(output)
    small = ["--epochs", "1", "--dim", "8", "--heads", "2", "--steps", "2", "--batch-size", "8"]
    code, output = run("train", path, *COLUMNS, *encoder, "--out", tmp_path / "run", *small)
    assert code == 0, output
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "finished"
    assert "small-wav2vec2" in json.dumps(record["data"])
    asked = DataRequest(data=str(path), audios=("clip",), texts=("caption",), label="y", split="part").open()
    kept = encode(asked, encoders_by_kind(asked, {"audio": str(model)}), store=FeatureStore(folder=store))
    tokens = kept.splits["train"][1].facts["tokens"]()["clip"][0]
    assert tokens.features.shape[1] == 32
    assert tokens.times.shape == (len(tokens.features), 2)
    assert float(tokens.times[-1, 1]) == pytest.approx(0.11)


def test_without_an_encoder_for_sounds_the_error_says_what_to_do(path: Path, tmp_path: Path) -> None:
    code, output = run("encode", path, *COLUMNS, "--store", tmp_path / "store")
    assert code == 1
    assert "'clip' holds sounds, and no built-in encoder describes those" in output
    assert "--audio-encoder wav2vec2" in output


def test_a_broken_sound_is_an_error_or_left_out(path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "clips" / "3.wav"
    broken.write_bytes(broken.read_bytes()[:300])
    options = ["--store", tmp_path / "store", "--audio-encoder", save_wav2vec2(tmp_path / "small-wav2vec2")]
    code, output = run("encode", path, *COLUMNS, *options)
    assert code == 1
    assert "3.wav: not a readable sound: it is cut off" in output.replace("\n", " ")
    code, output = run("encode", path, *COLUMNS, *options, "--skip-bad")
    assert code == 0, output
    assert "30 examples" in output
    assert "3.wav: not a readable sound" in output.replace("\n", "")
