"""The encoders that a run was trained with, made again from what its files say of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from meq.encoders.builtin import Patches, Words
from meq.encoders.catalogue import ENCODERS, KINDS, Setting, make_encoder
from meq.encoders.contract import Encoder
from meq.encoders.pretrained import EncoderError
from meq.encoders.regions import PictureRegions
from meq.encoders.transformer_audio import TransformerAudio
from meq.encoders.transformer_image import TransformerImage
from meq.encoders.transformer_text import TransformerText
from meq.experiments.runs.load import TrainedRun, check_encoder, shown
from meq.experiments.study import StudyError
from meq.training.record import EncoderFacts

PATCHES, WORDS = re.compile(r"patches-(\d+)x\1-v1"), re.compile(r"words-(\d+)-v1")
OFFLINE = {"all-MiniLM-L6-v2": "minilm", "efficientnet-lite0": "cnn", "efficientnet-lite0 regions": "cnn"}
"""Encoders whose own name is not the one they are asked for by."""
LOCAL = "local"
"""The revision of a model that was read from a folder, of which a run keeps the name only."""


def encoders_of_run(
    run: TrainedRun, *, chosen: Mapping[str, str | None] | None = None, batch_size: int = 32, device: str = "cpu"
) -> dict[str, Encoder]:
    """Every encoder that the run's features were made by, by modality, checked by revision and hash.

    `chosen` maps kinds of content (image, text, audio, regions) to names or folders, for models that lie elsewhere than
    they did in training. What cannot be had, or is another one, is an error that says what to install or to give.
    """
    setting = Setting(batch_size=batch_size, device=device)
    made: dict[tuple[EncoderFacts, str | None], Encoder] = {}
    found = {}
    for name, facts in run.task.encoders.items():
        key = (facts, run.task.kinds.get(name))
        if key not in made:
            made[key] = _encoder(run, name, setting, _asked(run, chosen or {}))
        found[name] = made[key]
    return found


def _asked(run: TrainedRun, chosen: Mapping[str, str | None]) -> dict[str, str]:
    """Names by kind: those given now, else those given in training."""
    kept = {} if run.request is None else dict(run.request.encoders)
    return {**kept, **{kind: name for kind, name in chosen.items() if name is not None}}


def _encoder(run: TrainedRun, modality: str, setting: Setting, asked: Mapping[str, str]) -> Encoder:
    """The first candidate that is the one of training; else the error of the last."""
    expected = run.task.encoders[modality]
    trouble: Exception | None = None
    for kind in _kinds(run, modality):
        try:
            encoder = _made(expected, kind, setting, asked)
            check_encoder(modality, encoder, expected)
            return encoder
        except (EncoderError, StudyError, ImportError) as error:
            trouble = trouble or error
    raise EncoderError(f"{modality!r} was encoded by {shown(expected)}, which cannot be had here. {trouble}")


def _kinds(run: TrainedRun, modality: str) -> Iterator[str]:
    """What the modality holds; where the run does not say, what its name, and its encoder's, suggest comes first."""
    if modality in run.task.kinds:
        yield run.task.kinds[modality]
        return
    name = run.task.encoders[modality].name
    if PATCHES.fullmatch(name) or name == "efficientnet-lite0":
        yield "image"
    elif WORDS.fullmatch(name) or name == "all-MiniLM-L6-v2":
        yield "text"
    elif name.endswith(" regions"):
        yield "regions"
    else:
        yield from sorted((kind for kind in KINDS if kind != "regions"), key=lambda kind: kind != modality)


def _made(expected: EncoderFacts, kind: str, setting: Setting, asked: Mapping[str, str]) -> Encoder:
    if grid := PATCHES.fullmatch(expected.name):
        return Patches(grid=int(grid[1]))
    if words := WORDS.fullmatch(expected.name):
        return Words(max_words=int(words[1]))
    if expected.name in OFFLINE:
        return ENCODERS[OFFLINE[expected.name]].make[kind](setting)
    if expected.revision == LOCAL or Path(asked.get(kind, "")).is_dir():
        return _local(expected, kind, setting, asked)
    return _hub(expected, kind, setting)


def _local(expected: EncoderFacts, kind: str, setting: Setting, asked: Mapping[str, str]) -> Encoder:
    option = f"--{'region' if kind == 'regions' else kind}-encoder FOLDER"
    place = asked.get(kind)
    if place is None or not Path(place).is_dir():
        missing = "" if place is None else f", and there is no folder {place}"
        raise EncoderError(f"it was read from a folder{missing}: say where it lies with {option}")
    return make_encoder(place, kind, batch_size=setting.batch_size, device=setting.device)


def _hub(expected: EncoderFacts, kind: str, setting: Setting) -> Encoder:
    """The very revision of training, whatever the name stands for today."""
    name, revision = expected.name.removesuffix(" regions"), expected.revision
    if kind == "text":
        return TransformerText(name, revision=revision, batch_size=setting.batch_size, device=setting.device)
    if kind == "audio":
        return TransformerAudio(name, revision=revision, device=setting.device)
    image = TransformerImage(name, revision=revision, batch_size=setting.batch_size, device=setting.device)
    return image if kind == "image" else PictureRegions(image)
