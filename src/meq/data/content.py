"""What an example holds before it is encoded: pictures and sounds that are opened when needed, regions, texts."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from meq.data.findings import DataError
from meq.data.pictures import MAX_PICTURE_BYTES, open_picture, open_scaled
from meq.data.pictures import MAX_PIXELS as MAX_PIXELS  # said here too, to those who only know contents
from meq.data.pictures import PICTURE_FORMATS as PICTURE_FORMATS
from meq.data.regular_files import sha256_of
from meq.data.wav import MAX_WAV_BYTES, WavError, read_head, read_wav

Size = tuple[int, int]

Read = TypeVar("Read")


class Picture(ABC):
    """A picture that is opened when it is needed."""

    @abstractmethod
    def open(self) -> Image.Image:
        """The whole picture, decoded, in RGB."""

    def open_scaled(self, side: int) -> tuple[Image.Image, Size]:
        """The picture for a reader who needs `side` pixels of its shorter side, and the size of the whole.

        A large one may come smaller than it is, which saves time and memory: see `meq.data.pictures`.
        """
        image = self.open()
        return image, image.size

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
        return self._read(lambda path: open_picture(path, name=str(self.path)))

    def open_scaled(self, side: int) -> tuple[Image.Image, Size]:
        return self._read(lambda path: open_scaled(path, side, name=str(self.path)))

    def fingerprint(self) -> str:
        return self._read(lambda path: sha256_of(path, most=MAX_PICTURE_BYTES))

    def checked_path(self) -> Path:
        """The path, if it leads to a place below the root."""
        return _below(self.root, self.path)

    def _read(self, read: Callable[[Path], Read]) -> Read:
        try:
            return read(self.checked_path())
        except FileNotFoundError as error:
            raise DataError(f"{self.path}: the picture is missing") from error
        except OSError as error:
            raise DataError(f"{self.path}: the picture cannot be read: {error.strerror}") from error

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
class SoundFile:
    """A sound on disk, a WAV file below the folder of its data set."""

    path: Path
    root: Path
    """Nothing outside this folder is read, whatever the path or a symlink says."""

    def open(self) -> tuple[Float[np.ndarray, " T"], int]:
        """All samples, between -1 and 1 and of one channel, and how many there are per second."""
        return self._read(read_wav)

    def seconds(self) -> float:
        """How long it is, by its head."""
        return self._read(read_head).seconds

    def fingerprint(self) -> str:
        """A hash of the content: two sounds with the same one are the same sound."""
        return self._read(lambda path: sha256_of(path, most=MAX_WAV_BYTES))

    def _read(self, read: Callable[[Path], Read]) -> Read:
        try:
            return read(_below(self.root, self.path))
        except DataError:
            raise
        except FileNotFoundError as error:
            raise DataError(f"{self.path}: the sound is missing") from error
        except (OSError, WavError) as error:
            raise DataError(f"{self.path}: not a readable sound: {error}") from error

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class Regions:
    """Boxes in a picture, each with a name: the tokens of a region encoder."""

    picture: Picture
    boxes: tuple[tuple[float, float, float, float], ...]
    """Left, top, right, bottom, in pixels of the original picture."""
    names: tuple[str, ...]


Content = Tensor | tuple[Tensor, ...] | str | tuple[str, ...] | Picture | SoundFile | Regions
"""Ready features (N W) or (W), a text, one of these per choice, a picture, a sound, or regions of a picture."""


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


def _below(root: Path, path: Path) -> Path:
    """The path, if it leads to a place below the root."""
    try:
        inside = path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a circle of symlinks, a name with a NUL
        raise DataError(f"{path}: leads nowhere: {error}") from error
    if not inside:
        raise DataError(f"{path}: leads outside of {root}, and is not followed")
    return path


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
