"""Folders in the form of CMU-MOSEI and COD10K, made up: few clips and pictures, every peculiarity of the format."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image, ImageDraw

LONGEST = 6
WIDTHS = {"vision": 5, "audio": 4, "text": 7}
SCORES = {"train": (0.333, -0.333, 2.6, -3.0, 0.0, 1.5), "valid": (1.0, -1.5), "test": (0.5, -2.6, 3.0)}
FIRST = {"train": 0, "test": 100}
ANIMALS = {
    "train": ["Cat", "Owl", "LeafySeaDragon", "Cat", "Ant", "Owl", "Other", "Bat", "Lion", "Ant"],
    "test": ["Cat", "Owl", "Bat", "Lion"],
}


def mosei_folder(path: Path, layout: str = "mult") -> Path:
    """One of the forms that `meq.data.mosei` knows."""
    path.mkdir(parents=True, exist_ok=True)
    if layout == "csd":
        return _csd(path)
    file = {"mult": "mosei_senti_data.pkl", "mmsa-aligned": "aligned_50.pkl", "mmsa-unaligned": "unaligned_50.pkl"}
    part = _mult if layout == "mult" else _mmsa
    whole = {split: part(split, scores, layout) for split, scores in SCORES.items()}
    (path / file[layout]).write_bytes(pickle.dumps(whole, protocol=2))
    return path


def _arrays(split: str, count: int) -> dict[str, Any]:
    generator = np.random.default_rng(len(split))
    made = {name: generator.standard_normal((count, LONGEST, width)) for name, width in WIDTHS.items()}
    return {name: x.astype(np.float32) for name, x in made.items()}


def _mult(split: str, scores: tuple[float, ...], layout: str) -> dict[str, Any]:
    """Zeros in front of the words; a clip is named by video, beginning and end; one value of audio is -inf."""
    part = _arrays(split, len(scores))
    for row in range(len(scores)):
        for name in WIDTHS:
            part[name][row, : row % 3] = 0
    part["audio"][0, -1, 0] = -np.inf
    part["labels"] = np.array(scores, dtype=np.float32).reshape(-1, 1, 1)
    part["id"] = np.array([[f"{split}video", f"{row}.0", f"{row}.5"] for row in range(len(scores))], dtype=object)
    return part


def _mmsa(split: str, scores: tuple[float, ...], layout: str) -> dict[str, Any]:
    """Padding behind the words, as long as BERT's mask or the lengths say; the padding here is not even zero."""
    part = _arrays(split, len(scores))
    bert = np.zeros((len(scores), 3, LONGEST), dtype=np.float32)
    for row in range(len(scores)):
        bert[row, 1, : row % 3 + 2] = 1
    part["text_bert"], part["regression_labels"] = bert, np.array(scores, dtype=np.float32)
    part["raw_text"] = [f"words of clip {row}" for row in range(len(scores))]
    part["id"] = [f"{split}video$_${row}" for row in range(len(scores))]
    if layout == "mmsa-unaligned":
        part["audio_lengths"] = [row % 2 + 3 for row in range(len(scores))]
        part["vision_lengths"] = [row % 4 + 1 for row in range(len(scores))]
    return part


def _csd(path: Path) -> Path:
    """Three videos of two clips. In `two`, the first clip is all pauses; in `three`, audio ends before the second."""
    words = [b"one", b"sp", b"two", b"three", b"four"]
    videos = {
        "one": _video(words, audio_seconds=8),
        "two": _video([b"sp", b"sp", b"sp", *words[3:]], audio_seconds=8),
        "three": _video(words, audio_seconds=4),
    }
    for name in videos["one"]:
        write_csd(path / f"CMU_MOSEI_{name}.csd", name, {video: parts[name] for video, parts in videos.items()})
    (path / "folds.json").write_text(json.dumps({"train": ["one"], "dev": ["two"], "test": ["three", "four"]}))
    return path


def _video(words: list[bytes], *, audio_seconds: int) -> dict[str, tuple[Any, Any]]:
    """Frames every half second, whose features are their time; the frame at 0.5 holds an -inf."""
    times = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (5.0, 6.0), (6.0, 7.0)]
    image, audio = np.arange(0, 8, 0.5), np.arange(0, audio_seconds, 0.5)
    covarep = np.repeat(audio[:, None], WIDTHS["audio"], 1)
    covarep[1, 0] = -np.inf
    return {
        "Labels": ([(0, 4), (4, 8)], [[1.5, 0, 0, 0, 0, 0, 0], [-0.5, 0, 0, 0, 0, 0, 0]]),
        "TimestampedWords": (times, np.array(words)[:, None]),
        "TimestampedWordVectors": (times, np.repeat(np.arange(1.0, 6)[:, None], WIDTHS["text"], 1)),
        "COVAREP": (np.stack([audio, audio + 0.5], 1), covarep),
        "VisualFacet42": (np.stack([image, image + 0.5], 1), np.repeat(image[:, None], WIDTHS["vision"], 1)),
    }


def write_csd(file: Path, name: str, videos: dict[str, tuple[Any, Any]]) -> None:
    """/<name>/data/<video>/{intervals,features}, and something in /<name>/metadata as the SDK has it."""
    with h5py.File(file, "w") as whole:
        whole.create_dataset(f"{name}/metadata/root name", data=name)
        for video, (intervals, features) in videos.items():
            whole[f"{name}/data/{video}/intervals"] = np.asarray(intervals, dtype=np.float64)
            whole[f"{name}/data/{video}/features"] = np.asarray(features)


def cod10k_folder(path: Path, layout: str = "v3") -> Path:
    """Pictures of a grey disc, with masks; in the layout of SINet, another set's pictures lie among them."""
    for split, animals in ANIMALS.items():
        folder = path / split.capitalize() if layout == "v3" else path / f"{split.capitalize()}Dataset"
        folder = folder / "COD10K" if layout == "sinet" and split == "test" else folder
        images, masks = (folder / name for name in (("Image", "GT_Object") if layout == "v3" else ("Imgs", "GT")))
        images.mkdir(parents=True)
        masks.mkdir()
        names = [f"COD10K-CAM-1-Group-{len(name)}-{name}-{row}" for row, name in enumerate(animals, FIRST[split])]
        for row, name in enumerate(names):
            _hidden(images / f"{name}.jpg", masks / f"{name}.png", row)
        if layout == "sinet" and split == "train":
            _hidden(images / "another_00001.jpg", masks / "another_00001.png", 0)
        if layout == "v3":
            _lists(path / "Info", split, names)
    return path


def _hidden(image: Path, mask: Path, row: int) -> None:
    box = (4 + row, 3, 14 + row, 13)
    picture, shape = Image.new("RGB", (30, 20), (90, 120, 60)), Image.new("L", (30, 20), 0)
    ImageDraw.Draw(picture).ellipse(box, fill=(110, 130 + row, 70))
    ImageDraw.Draw(shape).ellipse(box, fill=255)
    picture.save(image)
    shape.save(mask)


def _lists(info: Path, split: str, names: list[str]) -> None:
    """One list without a newline at its end, one with a blank line; a line without its number."""
    info.mkdir(exist_ok=True)
    end = "" if split == "train" else "\r\n\r\n"
    (info / f"CAM_{split}.txt").write_bytes(("\r\n".join(f"{name}.jpg 1" for name in names) + end).encode())
    (info / f"NonCAM_{split}.txt").write_text(
        "COD10K-NonCAM-3-Flying-99901.jpg 0\nCOD10K-NonCAM-2-Aquatic-99902.jpg \n\n"
    )
