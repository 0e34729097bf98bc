"""The examples run, and the model rebuilt from plain PyTorch is the library's."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from studies.photo_table import write_rows, write_table
from torch import Tensor

import meq

MINIMAL = Path(__file__).resolve().parents[1] / "examples" / "minimal.py"
PRACTICE = MINIMAL.with_name("csv_to_predictions.py")
END_TO_END = MINIMAL.with_name("end_to_end.py")
TRAINER = MINIMAL.with_name("transformers_trainer.py")
WIDTHS = {"image": 12, "text": 10}
OPTIONS: dict[str, Any] = {"classes": 3, "dim": 16, "heads": 4, "steps": 6}
CLOSE = {"rtol": 0, "atol": 1e-12}


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def minimal() -> ModuleType:
    return imported(MINIMAL)


def minimal_name(name: str) -> str:
    """Where the example keeps a weight of the library's model."""
    name = name.removeprefix("coupling.")
    return name.replace(".inject.project.", ".inject.").replace(".gate.read_proposal.", ".gate.")


def same_pair(minimal: ModuleType) -> tuple[torch.nn.Module, meq.MutualEquilibrium]:
    library = meq.MutualEquilibrium(WIDTHS, tol=0, **OPTIONS).double()
    with torch.no_grad():
        for name, weight in library.named_parameters():
            if name.endswith("balance"):
                weight.copy_(torch.randn_like(weight))  # alpha = 1/2 on both sides could hide an exchange
    plain = minimal.Pair(WIDTHS, **OPTIONS).double()
    # stand-ins speak for missing modalities, which the example does not have
    weights = {minimal_name(name): x for name, x in library.state_dict().items() if "stand_ins" not in name}
    plain.load_state_dict(weights)
    return plain, library


def some_features() -> dict[str, Tensor]:
    return {
        "image": torch.randn(3, 7, 12, dtype=torch.float64, requires_grad=True),
        "text": torch.randn(3, 5, 10, dtype=torch.float64, requires_grad=True),
    }


PADDED_TEXT = {"text": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 1, 0, 1]], dtype=torch.bool)}


@pytest.mark.parametrize("masks", [{}, PADDED_TEXT], ids=["no mask", "text mask"])
def test_the_minimal_pair_equals_the_library_to_the_last_digits(minimal: ModuleType, masks: dict[str, Tensor]) -> None:
    plain, library = same_pair(minimal)
    features = some_features()
    logits, state, residuals = plain(features, masks)
    output = library(features, masks)
    assert output.logits is not None
    assert output.solution is not None
    torch.testing.assert_close(logits, output.logits, **CLOSE)
    torch.testing.assert_close(state, output.solution.state, **CLOSE)
    for name, expected in output.solution.residuals.items():
        torch.testing.assert_close(torch.stack([step[name] for step in residuals]), expected, **CLOSE)


@pytest.mark.parametrize("masks", [{}, PADDED_TEXT], ids=["no mask", "text mask"])
def test_the_minimal_pair_has_the_gradients_of_the_library(minimal: ModuleType, masks: dict[str, Tensor]) -> None:
    plain, library = same_pair(minimal)
    features, target = some_features(), torch.tensor([0, 2, 1])
    expected = {minimal_name(name): p for name, p in library.named_parameters() if "stand_ins" not in name}
    found = dict(plain.named_parameters())
    assert found.keys() == expected.keys()

    def gradients(logits: Tensor, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        wanted = {**weights, **features}
        loss = torch.nn.functional.cross_entropy(logits, target)
        return dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values())), strict=True))

    logits = library(features, masks).logits
    assert logits is not None
    ours = gradients(plain(features, masks)[0], found)
    theirs = gradients(logits, expected)
    assert all(gradient.abs().sum() > 0 for gradient in ours.values())
    torch.testing.assert_close(ours, {name: theirs[name] for name in ours}, **CLOSE)


def test_the_minimal_script_prints_logits_and_a_falling_residual() -> None:
    done = subprocess.run([sys.executable, str(MINIMAL)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "logits (2, 3)" in done.stdout
    steps = [line for line in done.stdout.splitlines() if line.startswith("step")]
    assert len(steps) == 10
    first, last = (float(line.split()[-1]) for line in (steps[0], steps[-1]))
    assert last < first


def test_a_table_becomes_a_file_of_answers(tmp_path: Path) -> None:
    write_table(tmp_path, rows=120, pictures=20)
    write_rows(tmp_path / "new.csv", ["photo", "caption"], [["photos/0.png", "it is red"], ["", "it is blue"]])
    command = [sys.executable, str(PRACTICE), "photos.csv", "new.csv", "answers.csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "the scores are those of its record" in done.stdout
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 3


def test_the_trainer_of_transformers_teaches_whether_a_caption_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(TRAINER).main(tmp_path)
    printed = capsys.readouterr().out
    assert "accuracy on new rows: 1.00" in printed
    assert "a red square, 'it is blue': wrong" in printed


def test_encoders_are_trained_along_with_the_equilibrium() -> None:
    done = subprocess.run([sys.executable, str(END_TO_END)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [share] = re.findall(r"right answers on new pictures: (\d+)%", done.stdout)
    assert int(share) > 80  # more than either modality alone allows
