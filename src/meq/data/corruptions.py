"""Worse inputs for studies of robustness: noise and blur in pictures, typos in texts.

Noise and blur are measured in pixels of the picture that an encoder sees, so the picture is first brought to that size
(its shorter side, as encoders do): noise that is added to a large picture would be averaged away when it is scaled
down. What is drawn depends on the seed, the draw, the example and the modality only: every model sees the same.
"""

from __future__ import annotations

import hashlib
import string
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageFilter

from meq.core.options import checked_options, nearest
from meq.data.content import MAX_PIXELS, Content, Picture, Regions
from meq.data.contract import DataSet, Example, Rows
from meq.data.findings import DataError

READS = {"noise": ("image", "regions"), "blur": ("image", "regions"), "typos": ("text",)}
"""Which kinds of modality each corruption changes."""


@dataclass(frozen=True)
class Corruption:
    """Noise of a standard deviation (on pixels from 0 to 1), blur of a radius (pixels), or typos per character."""

    kind: Literal["noise", "blur", "typos"]
    strength: float

    def __post_init__(self) -> None:
        if self.kind not in READS:
            raise ValueError(f"there is no corruption {self.kind!r}: {nearest(self.kind, READS)}")
        if not 0 <= self.strength < float("inf") or (self.kind == "typos" and self.strength > 1):
            raise ValueError(f"{self.kind} of strength {self.strength} means nothing")

    @property
    def is_random(self) -> bool:
        """Whether draws differ: blur is the same every time."""
        return self.kind != "blur"

    def __str__(self) -> str:
        return f"{self.kind} {self.strength:g}"


STUDY = (
    Corruption("noise", 0.1),
    Corruption("noise", 0.3),
    Corruption("blur", 2),
    Corruption("blur", 8),
    Corruption("typos", 0.05),
    Corruption("typos", 0.1),
)
"""The paper's table of robustness."""
DRAWS = 5
"""Draws that the paper averages, for corruptions that are random."""


@checked_options
def corrupt(data: DataSet, corruption: Corruption, *, draw: int = 0, seed: int = 0, encoder_size: int = 224) -> DataSet:
    """The same data set with worse inputs; nothing is opened until it is used.

    `encoder_size` is the shorter side, in pixels, of the pictures that the image encoder sees.
    """
    touched = [name for name, modality in data.modalities.items() if modality.kind in READS[corruption.kind]]
    if not touched:
        kinds = ", ".join(f"{name!r} ({modality.kind})" for name, modality in data.modalities.items())
        raise ValueError(f"{data.name} has nothing for {corruption.kind} to change: {kinds}; corrupt before encoding")
    if encoder_size < 1:
        raise ValueError(f"encoder_size is a number of pixels, got {encoder_size}")

    def make(example: Example) -> Example:
        content = dict(example.content)
        for name in touched:
            if name in content:
                stream = f"{seed}/{draw}/{len(example.id)}:{example.id}/{name}"
                content[name] = _worse(content[name], corruption, stream, encoder_size)
        return replace(example, content=content)

    how = {**asdict(corruption), "draw": draw, "seed": seed, "encoder_size": encoder_size}
    splits = {name: Rows(split, make) for name, split in data.splits.items()}
    return replace(data, splits=splits, facts={**data.facts, "corruption": how})


def _worse(content: Content, corruption: Corruption, stream: str, size: int) -> Content:
    if isinstance(content, str):
        return typos(content, corruption.strength, _generator(stream))
    if isinstance(content, Picture):
        return CorruptedPicture(content, corruption, stream if corruption.is_random else "", size)
    if isinstance(content, Regions):
        scale = partial(_scaled_box, scale=_scale(content.picture.open(), size))
        picture = CorruptedPicture(content.picture, corruption, stream if corruption.is_random else "", size)
        return replace(content, picture=picture, boxes=tuple(map(scale, content.boxes)))
    choices: Any = content  # no corruption reads sounds or features: what is left is a tuple
    worse: Any = tuple(_worse(each, corruption, f"{stream}/{place}", size) for place, each in enumerate(choices))
    return worse


def _generator(stream: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(stream.encode()).digest()[:16], "big"))


@dataclass(frozen=True, slots=True)
class CorruptedPicture(Picture):
    """A picture in the size that its encoder sees, with noise or blur."""

    original: Picture
    corruption: Corruption
    stream: str
    """What the noise is drawn from; empty for blur, which draws nothing."""
    size: int

    def open(self) -> Image.Image:
        image = _resized(self.original.open(), self.size)
        if self.corruption.kind == "blur":
            return image.filter(ImageFilter.GaussianBlur(self.corruption.strength))
        return noisy(image, self.corruption.strength, _generator(self.stream))

    def fingerprint(self) -> str:
        how = f"{self.original.fingerprint()} {self.corruption} {self.size} {self.stream}"
        return hashlib.sha256(how.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.original} with {self.corruption}"


def _resized(image: Image.Image, size: int) -> Image.Image:
    scale = _scale(image, size)
    width, height = (max(1, round(side * scale)) for side in image.size)
    if width * height > MAX_PIXELS:
        raise DataError(f"a picture of {image.size[0]} x {image.size[1]} pixels is too narrow to be scaled to {size}")
    return image if (width, height) == image.size else image.resize((width, height), Image.Resampling.BICUBIC)


def _scale(image: Image.Image, size: int) -> float:
    return size / min(image.size)


def _scaled_box(box: tuple[float, float, float, float], *, scale: float) -> tuple[float, float, float, float]:
    left, top, right, bottom = box
    return left * scale, top * scale, right * scale, bottom * scale


def noisy(image: Image.Image, deviation: float, generator: np.random.Generator) -> Image.Image:
    """clip(x + deviation * n, 0, 1) with normal n, on pixels x from 0 to 1."""
    pixels = np.asarray(image, dtype=np.float32) / 255
    pixels = pixels + deviation * generator.standard_normal(pixels.shape, dtype=np.float32)
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))


def typos(text: str, share: float, generator: np.random.Generator) -> str:
    """The text with each character hit with probability `share`: replaced, dropped, followed by a letter, or swapped.

    A swap is with the next character. Spaces are never hit, so words stay apart; a text is never emptied.
    """
    made: list[str] = []
    place = 0
    while place < len(text):
        character, following = text[place], text[place + 1 : place + 2]
        place += 1
        if character.isspace() or generator.random() >= share:
            made.append(character)
            continue
        way = ("replace", "drop", "insert", "swap")[generator.integers(4)]
        if way == "swap" and following and not following.isspace():
            made += [following, character]
            place += 1
        elif way == "drop":
            continue
        elif way == "insert":
            made += [character, _letter(generator)]
        else:  # also where there is nothing to exchange with
            made.append(_letter(generator, unlike=character))
    worse = "".join(made)
    return worse if worse.strip() or not text.strip() else text


def _letter(generator: np.random.Generator, unlike: str = "") -> str:
    letters = [letter for letter in string.ascii_lowercase if letter != unlike.lower()]
    return letters[generator.integers(len(letters))]
