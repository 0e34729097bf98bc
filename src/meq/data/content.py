"""What an example holds before it is encoded: pictures that are opened when needed, regions in them, texts."""

from __future__ import annotations

import hashlib
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from meq.data.findings import DataError

MAX_PIXELS = 80_000_000
"""A picture that says it is larger is refused before it is decoded: a few kilobytes can unpack to gigabytes."""


class Picture(ABC):
    """A picture that is opened when it is needed."""

    @abstractmethod
    def open(self) -> Image.Image:
        """The whole picture, decoded, in RGB."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content: two pictures with the same one are the same picture."""

    @abstractmethod
    def __str__(self) -> str:
        """What to call it in an error."""


@dataclass(frozen=True, slots=True)
class PictureFile(Picture):
    """A picture on disk, below the folder of its data set."""

    path: Path
    root: Path
    """Nothing outside this folder is read, whatever the path or a symlink says."""

    def open(self) -> Image.Image:
        try:
            with warnings.catch_warnings():  # our own limit is stricter than the one that Pillow warns at
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                with Image.open(self.checked_path()) as image:
                    self._check_size(image)
                    return image.convert("RGB")
        except DataError:
            raise
        except FileNotFoundError as error:
            raise DataError(f"{self.path}: the picture is missing") from error
        except Image.DecompressionBombError as error:
            raise DataError(f"{self.path}: the picture is too large to be decoded safely: {error}") from error
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{self.path}: not a readable picture: {error}") from error

    def fingerprint(self) -> str:
        try:
            return hashlib.sha256(self.checked_path().read_bytes()).hexdigest()
        except OSError as error:
            raise DataError(f"{self.path}: the picture cannot be read: {error}") from error

    def checked_path(self) -> Path:
        """The path, if it leads to a place below the root."""
        if not self.path.resolve().is_relative_to(self.root.resolve()):
            raise DataError(f"{self.path}: leads outside of {self.root}, and is not followed")
        return self.path

    def _check_size(self, image: Image.Image) -> None:
        if image.width * image.height > MAX_PIXELS:
            raise DataError(
                f"{self.path}: {image.width} x {image.height} pixels, more than the {MAX_PIXELS:,} that are decoded; "
                "scale it down"
            )

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class DrawnPicture(Picture):
    """A picture that a function draws, the same one every time."""

    name: str
    draw: Callable[[], Image.Image]

    def open(self) -> Image.Image:
        return self.draw()

    def fingerprint(self) -> str:
        image = self.draw()
        return hashlib.sha256(f"{image.size}".encode() + np.asarray(image).tobytes()).hexdigest()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Regions:
    """Boxes in a picture, each with a name: the tokens of a region encoder."""

    picture: Picture
    boxes: tuple[tuple[float, float, float, float], ...]
    """Left, top, right, bottom, in pixels of the original picture."""
    names: tuple[str, ...]


Content = Tensor | tuple[Tensor, ...] | str | tuple[str, ...] | Picture | Regions
"""Ready features (N W) or (W), a text, one of these per choice, a picture, or regions of one."""


def fingerprint_of(content: Content) -> bytes:
    """A hash of what the content is, whatever its kind."""
    if isinstance(content, Tensor):
        data = f"{tuple(content.shape)}{content.dtype}".encode() + content.contiguous().numpy().tobytes()
    elif isinstance(content, str):
        data = b"text:" + content.encode()
    elif isinstance(content, tuple):
        data = b"choices:" + b"".join(fingerprint_of(choice) for choice in content)
    elif isinstance(content, Regions):
        data = f"{content.picture.fingerprint()}{content.boxes}{content.names}".encode()
    else:
        data = content.fingerprint().encode()
    return hashlib.sha256(data).digest()


class PictureFolder:
    """The pictures of one folder, listed once: whether a name is there costs no look at the disk."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self.names = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()

    def picture(self, name: str) -> PictureFile | None:
        """The picture of that file name, or None if there is none."""
        if name in self.names:
            return PictureFile(self.folder / name, self.root)
        return None
