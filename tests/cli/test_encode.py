from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from encoders.small_set import write_pictures
from plain import TESTS
from typer.testing import CliRunner

from meq.cli.data import encode

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(encode)


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def written_table(folder: Path) -> list[str]:
    """A CSV whose rows share pictures, and the arguments that name its columns."""
    write_pictures(folder / "photos", 5)
    rows = [
        f"photos/{row % 5}.png,there is {'red' if row % 3 else 'blue'} in it,{row % 2},{'dev' if row > 19 else 'train'}"
        for row in range(30)
    ]
    (folder / "pairs.csv").write_text("\n".join(["photo,caption,y,part", *rows]) + "\n")
    named = ["--image", "photo", "--text", "caption", "--label", "y", "--split", "part"]
    return [str(folder / "pairs.csv"), *named, "--image-encoder", "patches", "--text-encoder", "words"]


def squeezed(output: str) -> list[str]:
    return [" ".join(line.replace("│", " ").split()) for line in output.splitlines()]


def test_a_table_is_encoded_once_and_the_next_run_finds_it_done(tmp_path: Path) -> None:
    arguments = [*written_table(tmp_path), "--store", str(tmp_path / "store")]
    code, output = run(*arguments)
    assert code == 0, output
    assert "photo patches-6x6-v1 5 5 0" in squeezed(output)
    assert "caption words-64-v1 2 2 0" in squeezed(output)
    assert "patches-6x6-v1: 5 of 5" in output
    code, output = run(*arguments, "--verify")
    assert code == 0, output
    assert "photo patches-6x6-v1 5 0 0" in squeezed(output)


def test_a_broken_picture_is_an_error_or_left_out_and_counted(tmp_path: Path) -> None:
    arguments = [*written_table(tmp_path), "--store", str(tmp_path / "store")]
    path = tmp_path / "photos" / "3.png"
    path.write_bytes(path.read_bytes()[:70])
    code, output = run(*arguments)
    assert code == 1
    assert f"error: {path}: not a readable picture" in output
    assert "Traceback" not in output
    code, output = run(*arguments, "--skip-bad")
    assert code == 0, output
    left_out = [int(line.split(":")[1]) for line in output.splitlines() if line.startswith("left out of")]
    assert sum(left_out) == 6
    assert f"{path}: not a readable picture" in output


def test_a_table_is_read_by_the_encoders_that_training_takes(tmp_path: Path) -> None:
    arguments = written_table(tmp_path)[:-4]
    code, output = run(*arguments, "--store", tmp_path / "store")
    assert code == 0, output
    assert any(line.startswith("caption all-MiniLM") or "minilm" in line.lower() for line in squeezed(output)), output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scens"], "did you mean 'scenes'?"),
        (["scenes", "--dtype", "float61"], "did you mean 'float16'?"),
        (["scenes", "--on-damage", "encod"], "did you mean 'encode'?"),
        (["scenes", "--image-encoder", "patche"], "did you mean 'patches'?"),
        (["scenes", "--region-encoder", "cnn"], "holds nothing of kind 'regions' that 'cnn' could encode"),
        (["scenes", "--set", "trian=9"], "did you mean 'train'?"),
    ],
)
def test_what_does_not_exist_is_answered_in_words(tmp_path: Path, arguments: list[str], message: str) -> None:
    small = ["--set", "train=18", "--set", "dev=18", "--set", "test=18"]
    code, output = run(*arguments, *small, "--store", tmp_path / "store")
    assert code == 1, output
    assert message in output
    assert not (tmp_path / "store").exists()


def test_two_processes_fill_one_store_from_the_command_line(tmp_path: Path) -> None:
    arguments = written_table(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
    program = tmp_path / "program.py"
    program.write_text("import typer\nfrom meq.cli.data import encode\ntyper.run(encode)\n")
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent / "src"), "OMP_NUM_THREADS": "1"}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, *torchrun, str(program), *arguments, "--store", str(tmp_path / "store")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    assert squeezed(done.stdout).count("photo patches-6x6-v1 5 5 0") == 1, "one process speaks"
    assert len(list((tmp_path / "store").rglob("*.safetensors"))) == 4, "two encoders, two processes"
    _, output = run(*arguments, "--store", tmp_path / "store")
    assert "photo patches-6x6-v1 5 0 0" in squeezed(output)
