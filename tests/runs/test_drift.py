"""New tables against the profile of training: silent on fresh samples of the same data, loud on others."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from studies.photo_table import write_rows
from typer.testing import CliRunner

from meq.cli.root import app
from meq.data.content import PictureBytes
from meq.data.contract import IMAGE, TEXT, DataSet, Example, features
from meq.data.metrics import ACCURACY
from meq.data.request import DataRequest
from meq.records import dumps
from meq.runs import TrainedRun, load_run, train_on
from meq.runs.drift import LEAST, differences
from meq.training import TrainConfig
from meq.training.profile import Profile, Spread, profile_of

VOCABULARY = [f"{a}{b}{c}" for a in "bdfgkl" for b in "aeiou" for c in "mnprst"]
FRESH = 100
"""Fresh samples of the same data; each is compared in a dozen ways."""


def png(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side + 8)).save(file, "PNG")
    return file.getvalue()


PICTURES = {side: png(side) for side in (24, 32, 48, 64, 256)}


def examples(
    random: np.random.Generator,
    rows: int,
    *,
    words: list[str] = VOCABULARY,
    sides: tuple[int, ...] = (24, 32, 48, 64),
    missing: float = 0.1,
    shift: float = 0.0,
    scale: float = 1.0,
) -> list[Example]:
    """Texts by a law of frequencies, heavy-tailed numbers, pictures of several sizes, and some that are missing."""
    chances = 1 / np.arange(1, len(words) + 1)
    drawn = random.choice(words, size=(rows, 12), p=chances / chances.sum())
    made = []
    for row in range(rows):
        chosen = drawn[row, : random.integers(3, 12)]
        content: dict[str, Any] = {
            "text": " ".join(chosen),
            "numbers": (random.standard_t(4, size=6) * scale + shift).astype(np.float32),
            "image": PictureBytes("a picture", PICTURES[int(random.choice(sides))]),
        }
        made.append(
            Example(
                id=str(row),
                content={name: x for name, x in content.items() if name == "text" or random.random() > missing},
                target=None,
            )
        )
    return made


def data_set(random: np.random.Generator, train: int, dev: int) -> DataSet:
    return DataSet(
        name="made",
        splits={"train": examples(random, train), "dev": examples(random, dev)},
        modalities={"text": TEXT, "numbers": features(6), "image": IMAGE},
        labels=("a", "b"),
        head="classes",
        metric=ACCURACY,
    )


def logits(random: np.random.Generator, rows: int, sure: float) -> list[torch.Tensor]:
    return [torch.tensor([sure * x, 0.0]) for x in random.normal(size=rows)]


@pytest.fixture(scope="module")
def profile() -> Profile:
    random = np.random.default_rng(0)
    made = profile_of(data_set(random, 400, 120))
    sure = [float(x.softmax(0).max()) for x in logits(random, 120, 2.0)]
    return replace(made, confidence=Spread.of(sure))


def test_fresh_samples_of_the_same_data_raise_no_alarm(profile: Profile) -> None:
    random = np.random.default_rng(1)
    for resample in range(FRESH):
        rows = (LEAST, 60, 60, 120)[resample % 4]
        found = differences(profile, examples(random, rows), logits(random, rows, 2.0), head="classes")
        assert not found, [str(each) for each in found]


def test_small_profiles_raise_no_alarm_either() -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        small = profile_of(data_set(random, 40, LEAST))
        assert not differences(small, examples(random, 60), head="classes")


@pytest.mark.parametrize(
    ("changes", "what", "words"),
    [
        (
            {"words": [word[::-1] for word in VOCABULARY]},
            "unknown words",
            r"text: \d+% of the words are not in",
        ),
        ({"sides": (256,)}, "picture size", r"image: pictures are larger: 256 pixels of the shorter side, in training"),
        ({"missing": 0.6}, "missing", r"numbers: missing in \d+% of the rows, in training in \d+%"),
        ({"shift": 3.0}, "numbers", r"numbers: other numbers on average: number \d .* and 3 more"),
        ({"scale": 20.0}, "outside the range", r"numbers: \d+% of the numbers lie outside of the range of training"),
    ],
)
def test_really_different_data_is_said_to_be(profile: Profile, changes: dict[str, Any], what: str, words: str) -> None:
    random = np.random.default_rng(3)
    found = differences(profile, examples(random, 120, **changes), head="classes")
    assert what in {each.what for each in found}
    assert any(re.match(words, str(each)) for each in found), [str(each) for each in found]


def test_answers_that_are_less_sure_are_told_of(profile: Profile) -> None:
    random = np.random.default_rng(4)
    same = examples(random, 100)
    (found,) = differences(profile, same, logits(random, 100, 0.1), head="classes")
    assert found.what == "confidence"
    assert str(found).startswith("the model is less sure of its answers: 0.5")


def test_few_rows_and_runs_without_a_profile_are_silent(profile: Profile) -> None:
    other = examples(np.random.default_rng(5), LEAST - 1, shift=100.0)
    assert not differences(profile, other, head="classes")
    assert not differences(None, other * 4, head="classes")


def test_a_profile_is_small_and_holds_no_words(profile: Profile) -> None:
    assert len(dumps(profile)) < 20_000
    assert "bam" not in dumps(profile), "words are kept as hashes"


# -- a run -------------------------------------------------------------------------------------------------------------


def table(path: Path, random: np.random.Generator, *, rows: int, shift: float = 0.0, told: str = "it is") -> Path:
    made = [
        [
            f"{told} {'dry' if x > 0 else 'wet'}",
            f"{x + shift:.3f} {y:.3f}",
            "ab"[int(x > 0)],
            ("train", "dev")[k % 3 == 0],
        ]
        for k, (x, y) in enumerate(random.normal(size=(rows, 2)))
    ]
    return write_rows(path, ["note", "sizes", "y", "part"], made)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("drift")
    request = DataRequest(
        data=str(table(folder / "rows.csv", np.random.default_rng(6), rows=120)),
        texts=("note",), vectors=("sizes",), label="y", split="part",
    )  # fmt: skip
    config = TrainConfig(epochs=1, batch_size=40, learning_rate=1e-3)
    shape = {"dim": 8, "heads": 2, "steps": 2}
    return train_on(request, folder / "run", encoders={"text": "words"}, shape=shape, config=config)


def test_predict_is_silent_on_rows_like_those_of_training_and_tells_what_differs(
    run: TrainedRun, tmp_path: Path
) -> None:
    random = np.random.default_rng(7)
    assert run.task.profile is not None
    assert run.task.profile.confidence is not None
    assert run.predict_table(table(tmp_path / "same.csv", random, rows=80)).drift == ()
    other = table(tmp_path / "other.csv", random, rows=80, shift=4.0, told="today everything seems rather")
    drift = {each.what: each for each in run.predict_table(other).drift}
    assert drift["unknown words"].modality == "note"
    assert drift["numbers"].modality == "sizes"
    older = replace(run, task=replace(run.task, profile=None))
    assert older.predict_table(other).drift == ()


def test_the_command_says_it_beside_the_answers(run: TrainedRun, tmp_path: Path) -> None:
    other = table(tmp_path / "other.csv", np.random.default_rng(8), rows=80, shift=4.0)
    arguments = ["predict", str(run.folder.parent), str(other), "-o", str(tmp_path / "answers.csv"), "--json"]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    assert "unlike the data of training: sizes: " in said.stderr
    assert "numbers" in [each["what"] for each in json.loads(said.stdout)["drift"]]
    assert load_run(run.folder.parent).task.profile == run.task.profile
