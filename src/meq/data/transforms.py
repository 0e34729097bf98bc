"""Data sets made from others: standardised, with a modality blanked, or with worse inputs.

- `standardise`: features with mean 0 and standard deviation 1, by the statistics of the train split alone.
- `blank`: the features of a modality are zero for everybody; its tokens are still there.
- `corrupt`: noise and blur in pictures, typos in texts, for studies of robustness.

Noise and blur are measured in pixels of the picture that an encoder sees, so the picture is first brought to that size
(its shorter side, as encoders do): noise that is added to a large picture would be averaged away when it is scaled
down. What is drawn depends on the seed, the draw, the example and the modality only: every model sees the same.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image, ImageFilter

from meq.data.content import Content, Picture, Regions
from meq.data.contract import DataSet, Example, Rows, tensors_of
from meq.data.findings import DataError
from meq.data.pictures import MAX_PIXELS
from meq.options import checked_options, nearest

if TYPE_CHECKING:
    from torch import Tensor


def _changed(data: DataSet, make: Callable[[Example], Example], facts: Mapping[str, Any]) -> DataSet:
    """The data set with every example changed when it is asked for, and what was done among its facts."""
    splits = {name: Rows(split, make) for name, split in data.splits.items()}
    return replace(data, splits=splits, facts={**data.facts, **facts})


@dataclass(frozen=True, kw_only=True)
class Standardisation:
    """Mean and standard deviation of each column of each modality, over all tokens of the train split.

    Belongs to a trained model as its weights do: new samples go through the same one.
    """

    mean: Mapping[str, tuple[float, ...]]
    std: Mapping[str, tuple[float, ...]]
    """Population standard deviations; 1 for a column that does not vary, which then becomes 0."""

    def apply(self, data: DataSet) -> DataSet:
        """The data set with (x - mean) / std in place of x; examples are made when they are asked for."""
        import torch

        for name, mean in self.mean.items():
            if name not in data.modalities:
                raise DataError(f"{data.name} has no modality {name!r}: {nearest(name, data.modalities)}")
            if data.modalities[name].width != len(mean):
                width = data.modalities[name].width
                raise DataError(f"{data.name}: {name!r} has width {width}, the statistics are of {len(mean)} columns")
        scales = {name: (torch.tensor(self.mean[name]), torch.tensor(self.std[name])) for name in self.mean}

        def make(example: Example) -> Example:
            scaled = {name: _scaled(x, *scales[name]) for name, x in example.content.items() if name in scales}
            return replace(example, content={**example.content, **scaled})

        return _changed(data, make, {"standardised": list(self.mean)})

    def __post_init__(self) -> None:
        if {name: len(row) for name, row in self.mean.items()} != {name: len(row) for name, row in self.std.items()}:
            raise DataError("a standardisation needs as many means as standard deviations, modality by modality")
        for name, row in self.std.items():
            if not all(0 < value < float("inf") for value in row):
                raise DataError(f"the standard deviations of {name!r} must be positive and finite")


def standardise(data: DataSet) -> tuple[DataSet, Standardisation]:
    """Every features modality standardised by the train split, and the statistics; pictures and texts stay as they are.

    A row that lacks a modality has no say in its statistics. What train never has is left as it is.
    """
    if "train" not in data.splits:
        raise DataError(f"{data.name} has no train split to take statistics from; it has {', '.join(data.splits)}")
    sums = {name: _Moments(x.width) for name, x in data.modalities.items() if x.kind == "features" and x.width}
    for example in data.splits["train"]:
        for name, moments in sums.items():
            if name in example.content:
                moments.add(example.content[name], name, example.id)
    seen = {name: moments for name, moments in sums.items() if moments.count}
    found = Standardisation(
        mean={name: tuple(moments.mean.tolist()) for name, moments in seen.items()},
        std={name: tuple(moments.std().tolist()) for name, moments in seen.items()},
    )
    return found.apply(data), found


class _Moments:
    """Mean and squared deviations, one example after the other, in float64 (Welford, by blocks of tokens)."""

    def __init__(self, width: int) -> None:
        import torch

        self.count = 0
        self.mean = torch.zeros(width, dtype=torch.float64)
        self.squares = torch.zeros(width, dtype=torch.float64)
        self.largest = torch.zeros(width, dtype=torch.float64)

    def add(self, content: Any, name: str, example: str) -> None:
        import torch

        parts = content if isinstance(content, tuple) else (content,)
        x = torch.cat([part.double().reshape(-1, part.shape[-1]) for part in parts])
        if not bool(x.isfinite().all()):
            raise DataError(f"example {example!r}: {name!r} holds numbers that are not finite")
        if not len(x):
            return
        total = self.count + len(x)
        away = x.mean(0) - self.mean
        self.squares += (x - x.mean(0)).square().sum(0) + away.square() * self.count * len(x) / total
        self.mean += away * len(x) / total
        self.largest = torch.maximum(self.largest, x.abs().amax(0))
        self.count = total

    def std(self) -> Tensor:
        """A column whose spread is below what float32 can show of its values does not vary: it is divided by 1."""
        import torch

        std = (self.squares / self.count).sqrt()
        return torch.where(std > self.largest * torch.finfo(torch.float32).eps, std, 1.0)


def _scaled(content: Content, mean: Tensor, std: Tensor) -> Content:
    scaled = tuple((x - mean) / std for x in tensors_of(content))
    return scaled if isinstance(content, tuple) else scaled[0] if scaled else content


def blank(data: DataSet, modalities: Sequence[str]) -> DataSet:
    """The data set with zeros in place of these modalities' features; how many tokens there are can still be seen.

    Choices become equal to each other, in length too: else the longest one could be told from the others.
    """
    for name in modalities:
        if name not in data.modalities:
            raise DataError(f"{data.name} has no modality {name!r} to blank: {nearest(name, data.modalities)}")
        if data.modalities[name].width is None:
            raise DataError(f"{data.name}: {name!r} is blanked after encoding, and is not encoded yet")
    if set(modalities) >= set(data.modalities):
        raise DataError(f"{data.name}: with {', '.join(modalities)} blank there is nothing left to learn from")

    def make(example: Example) -> Example:
        zeros = {name: _zeros(x, name, example) for name, x in example.content.items() if name in modalities}
        return replace(example, content={**example.content, **zeros})

    return _changed(data, make, {"blank": list(modalities)})


def _zeros(content: Content, name: str, example: Example) -> Content:
    import torch

    if isinstance(content, torch.Tensor):
        return torch.zeros_like(content)
    found = tensors_of(content)
    if not isinstance(content, tuple) or len(found) < len(content):
        # what is not understood must not go through as it is: the record would say that it was blank
        raise DataError(f"example {example.id!r}: {name!r} is a {type(content).__name__}, which cannot be blanked")
    longest = max(found, key=lambda x: x.shape[0] if x.ndim > 1 else 1)
    return tuple(torch.zeros_like(longest) for _ in found)


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
    return _changed(data, make, {"corruption": how})


def _worse(content: Content, corruption: Corruption, stream: str, size: int) -> Content:
    if isinstance(content, str):
        return typos(content, corruption.strength, _generator(stream))
    drawn = stream if corruption.is_random else ""
    if isinstance(content, Picture):
        return CorruptedPicture(content, corruption, drawn, size)
    if isinstance(content, Regions):
        scale = _scale(content.picture.open(), size)
        boxes = tuple(
            (left * scale, top * scale, right * scale, bottom * scale) for left, top, right, bottom in content.boxes
        )
        return replace(content, picture=CorruptedPicture(content.picture, corruption, drawn, size), boxes=boxes)
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
        image = self.original.open()
        width, height = (max(1, round(side * _scale(image, self.size))) for side in image.size)
        if width * height > MAX_PIXELS:
            large = f"{image.size[0]} x {image.size[1]}"
            raise DataError(f"a picture of {large} pixels is too narrow to be scaled to {self.size}")
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        if self.corruption.kind == "blur":
            return image.filter(ImageFilter.GaussianBlur(self.corruption.strength))
        return noisy(image, self.corruption.strength, _generator(self.stream))

    def fingerprint(self) -> str:
        how = f"{self.original.fingerprint()} {self.corruption} {self.size} {self.stream}"
        return hashlib.sha256(how.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.original} with {self.corruption}"


def _scale(image: Image.Image, size: int) -> float:
    return size / min(image.size)


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
