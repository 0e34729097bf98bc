"""What an example holds before it is encoded: pictures, masks and sounds that are opened when needed, regions, texts.

And the folders they lie in: a path that a data file names never leaves its folder, and each folder is listed once, so
that asking whether a file exists does not touch the disk.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from jaxtyping import Float
from PIL import Image

from meq.data.files import BadRowError, sha256_of
from meq.data.findings import DataError, Findings
from meq.data.pictures import MAX_PICTURE_BYTES, open_picture, open_scaled, size_of_picture
from meq.data.sound import MAX_WAV_BYTES, WavError, read_head, read_wav

if TYPE_CHECKING:
    from torch import Tensor

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
class _FileBelow:
    """A file below the folder of its data set."""

    path: Path
    root: Path
    """Nothing outside this folder is read, whatever the path or a symlink says."""
    noun: ClassVar[str]
    max_bytes: ClassVar[int]

    def fingerprint(self) -> str:
        """A hash of the content: two files with the same one hold the same."""
        return self._read(lambda path: sha256_of(path, most=self.max_bytes))

    def checked_path(self) -> Path:
        """The path, if it leads to a place below the root."""
        try:
            inside = self.path.resolve().is_relative_to(self.root.resolve())
        except (OSError, RuntimeError, ValueError) as error:  # a circle of symlinks, a name with a NUL
            raise DataError(f"{self.path}: leads nowhere: {error}") from error
        if not inside:
            raise DataError(f"{self.path}: leads outside of {self.root}, and is not followed")
        return self.path

    def _read(self, read: Callable[[Path], Read]) -> Read:
        try:
            return read(self.checked_path())
        except FileNotFoundError as error:
            raise DataError(f"{self.path}: the {self.noun} is missing") from error
        except OSError as error:
            raise DataError(f"{self.path}: the {self.noun} cannot be read: {error.strerror}") from error
        except WavError as error:
            raise DataError(f"{self.path}: not a readable sound: {error}") from error

    def __str__(self) -> str:
        return str(self.path)


class PictureFile(_FileBelow, Picture):
    """A picture on disk."""

    noun, max_bytes = "picture", MAX_PICTURE_BYTES

    def open(self) -> Image.Image:
        return self._read(lambda path: open_picture(path, name=str(self.path)))

    def open_scaled(self, side: int) -> tuple[Image.Image, Size]:
        return self._read(lambda path: open_scaled(path, side, name=str(self.path)))

    def size(self) -> Size:
        """Width and height as the file's head says, without decoding it; an error where the head is already wrong."""
        return self._read(lambda path: size_of_picture(path, name=str(self.path)))


@dataclass(frozen=True, slots=True)
class PictureBytes(Picture):
    """A picture in memory, as the bytes of its file."""

    name: str
    data: bytes

    def open(self) -> Image.Image:
        return open_picture(self.data, name=self.name)

    def open_scaled(self, side: int) -> tuple[Image.Image, Size]:
        return open_scaled(self.data, side, name=self.name)

    def size(self) -> Size:
        """Width and height as its head says, without decoding it."""
        return size_of_picture(self.data, name=self.name)

    def fingerprint(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def __str__(self) -> str:
        return self.name


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


class Sound(ABC):
    """A sound that is opened when it is needed."""

    __slots__ = ()

    @abstractmethod
    def open(self) -> tuple[Float[np.ndarray, " T"], int]:
        """All samples, between -1 and 1 and of one channel, and how many there are per second."""

    @abstractmethod
    def seconds(self) -> float:
        """How long it is, by its head."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the content: two sounds with the same one are the same sound."""

    @abstractmethod
    def __str__(self) -> str:
        """What to call it in an error."""


class SoundFile(_FileBelow, Sound):
    """A sound on disk, a WAV file."""

    __slots__ = ()
    noun, max_bytes = "sound", MAX_WAV_BYTES

    def open(self) -> tuple[Float[np.ndarray, " T"], int]:
        return self._read(read_wav)

    def seconds(self) -> float:
        return self._read(read_head).seconds


@dataclass(frozen=True, slots=True)
class SoundBytes(Sound):
    """A sound in memory, as the bytes of its WAV file."""

    name: str
    data: bytes

    def open(self) -> tuple[Float[np.ndarray, " T"], int]:
        return self._read(read_wav)

    def seconds(self) -> float:
        return self._read(read_head).seconds

    def fingerprint(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def _read(self, read: Callable[[bytes], Read]) -> Read:
        try:
            return read(self.data)
        except WavError as error:
            raise DataError(f"{self.name}: not a readable sound: {error}") from error

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Regions:
    """Boxes in a picture, each with a name: the tokens of a region encoder."""

    picture: Picture
    boxes: tuple[tuple[float, float, float, float], ...]
    """Left, top, right, bottom, in pixels of the original picture."""
    names: tuple[str, ...]


if TYPE_CHECKING:
    Content = Tensor | tuple[Tensor, ...] | str | tuple[str, ...] | Picture | Sound | Regions
    """Ready features (N W) or (W), a text, one of these per choice, a picture, a sound, or regions of a picture."""
    Target = Tensor
else:  # the union needs torch, which takes seconds to import, and a data set can be read and checked without it
    Content = Target = Any


def fingerprint_of(content: Content, known: dict[Picture | Sound, str] | None = None) -> bytes:
    """A hash of what the content is, whatever its kind; `known` remembers those of files, so that each is read once."""
    if isinstance(content, str):
        data = b"text:" + content.encode()
    elif isinstance(content, tuple):
        data = b"choices:" + b"".join(fingerprint_of(choice, known) for choice in content)
    elif isinstance(content, Regions):
        data = f"{_file_hash(content.picture, known)}{content.boxes}{content.names}".encode()
    elif isinstance(content, Picture | Sound):
        data = _file_hash(content, known).encode()
    else:
        data = f"{tuple(content.shape)}{content.dtype}".encode() + content.contiguous().numpy().tobytes()
    return hashlib.sha256(data).digest()


def _file_hash(content: Picture | Sound, known: dict[Picture | Sound, str] | None) -> str:
    if known is None or not isinstance(content, PictureFile | Sound):
        return content.fingerprint()
    if content not in known:
        known[content] = content.fingerprint()
    return known[content]


@dataclass(frozen=True, slots=True)
class MaskFile:
    """Where something is in a picture, as a file below the folder of its data set."""

    path: Path
    root: Path
    picture: PictureFile

    def open(self) -> np.ndarray[Any, Any]:
        """True where the mask is white, H W. It holds black and white only, and has the size of its picture."""
        pixels = np.asarray(PictureFile(self.path, self.root).open())  # H W 3; a grey file has three equal channels
        if not ((pixels == 0) | (pixels == 255)).all() or (pixels != pixels[..., :1]).any():
            raise DataError(f"{self}: not a mask: it holds other values than 0 and 255")
        height, width = pixels.shape[:2]
        if (size := self.picture.size()) != (width, height):
            raise DataError(
                f"{self}: {width} x {height} pixels, but its picture {self.picture} has {size[0]} x {size[1]}"
            )
        return pixels[..., 0] == 255

    def __str__(self) -> str:
        return str(self.path)


URL = re.compile(r"^([a-z][a-z0-9+.-]+://|data:)", re.IGNORECASE)
ABSOLUTE = re.compile(r"[/\\]|[a-z]:[/\\]", re.IGNORECASE)
"""On any system: a path that is refused on one must not be read on another."""
MISSED = 20
"""How many names that could not be used are kept."""


class Tree:
    """The files below a folder, by the paths that data names; each folder in it is listed once, when first needed.

    A path is relative to the folder, or absolute and below it. None leads out of the root, by itself or by a symlink;
    where a symlink came later, opening the file refuses it.
    """

    def __init__(self, folder: Path, root: Path | None = None, *, noun: str = "picture") -> None:
        self.folder, self.root, self.noun = folder, folder if root is None else root, noun
        self.any_found = False
        self.missed: list[str] = []
        """The first names that could not be used, for advice on what is wrong with them."""
        self._true_root = self.root.resolve()
        self._beginnings = (os.path.abspath(folder), str(folder.resolve()))
        self._listed: dict[str, dict[str, bool | None] | BadRowError] = {}
        self._found: dict[str, str | BadRowError] = {}

    def find(self, name: str) -> str:
        """The name in its plain form, `a.jpg` for `./a.jpg`; a BadRowError if it cannot be used.

        Two rows hold the same file if the plain forms are the same.
        """
        if name not in self._found:
            try:
                self._found[name] = self._find(name)
                self.any_found = True
            except BadRowError as bad:
                self._found[name] = bad.with_traceback(None)
                if len(self.missed) < MISSED:
                    self.missed.append(name)
        found = self._found[name]
        if isinstance(found, BadRowError):
            raise BadRowError(found.kind, str(found))
        return found

    def names(self) -> list[str]:
        """The files in the folder itself, sorted."""
        try:
            return sorted(self._files(""))
        except BadRowError as bad:
            raise DataError(str(bad)) from None

    def picture(self, name: str) -> PictureFile:
        return PictureFile(self.folder / name, self.root)

    def _find(self, name: str) -> str:
        up = ".." in re.split(r"[/\\]", name)
        if os.path.isabs(name) and not up:
            plain = os.path.normpath(name)
            below = (each for each in self._beginnings if plain.startswith(each.rstrip(os.sep) + os.sep))
            folder = next(below, None)
            name = name if folder is None else os.path.relpath(plain, folder).replace(os.sep, "/")
        if URL.match(name):
            raise BadRowError(
                "wrong path", f"{name[:80]!r} is an address; download the {self.noun} and give the file's path"
            )
        if ABSOLUTE.match(name):
            raise BadRowError("path outside", f"{name!r} is an absolute path that leads outside of {self.folder}")
        if up:
            raise BadRowError("path outside", f"{name!r} goes up with '..', which is not followed")
        if "\0" in name:
            raise BadRowError("wrong path", f"{name!r} is no file name")
        path = posixpath.normpath(name)
        parent, file = posixpath.split(path)
        files = self._files(parent)
        if file not in files:
            hint = "; write paths with /" if "\\" in name else ""
            raise BadRowError(f"missing {self.noun}", f"there is no {self.noun} {name!r} below {self.folder}{hint}")
        is_symlink = files[file]
        if is_symlink is None:
            raise BadRowError("wrong path", f"{name!r} is a pipe, a socket or a device, not a {self.noun}")
        if is_symlink:
            self._check_inside(path)
            if not (self.folder / path).is_file():
                raise BadRowError(f"missing {self.noun}", f"{path!r} is a symlink that leads to no file")
        return path

    def _files(self, parent: str) -> dict[str, bool | None]:
        """The files of a folder, each with whether it is a symlink; none without a folder.

        None for pipes, sockets and devices, which are never opened.
        """
        if parent not in self._listed:
            try:
                self._check_inside(parent)
                with os.scandir(self.folder / parent) as entries:
                    self._listed[parent] = {
                        entry.name: entry.is_symlink() or (False if entry.is_file(follow_symlinks=False) else None)
                        for entry in entries
                        if not entry.is_dir(follow_symlinks=False)
                    }
            except (FileNotFoundError, NotADirectoryError):
                self._listed[parent] = {}
            except OSError as error:
                trouble = f"the folder {parent!r} cannot be read: {error.strerror}"
                self._listed[parent] = BadRowError(f"missing {self.noun}", trouble)
            except BadRowError as bad:
                self._listed[parent] = bad.with_traceback(None)
        files = self._listed[parent]
        if isinstance(files, BadRowError):
            raise BadRowError(files.kind, str(files))
        return files

    def _check_inside(self, name: str) -> None:
        try:
            inside = (self.folder / name).resolve().is_relative_to(self._true_root)
        except (OSError, RuntimeError):  # a circle of symlinks leads nowhere
            inside = False
        if not inside:
            what = repr(name) if name else f"the folder {self.folder}"
            raise BadRowError(
                "path outside", f"{what} is a symlink that leads outside of {self.root}, and is not followed"
            )


def first_of(root: Path, names: Sequence[str]) -> Path | None:
    """The first of these paths below the root that exists."""
    return next((root / name for name in names if (root / name).exists()), None)


def split_files(root: Path, names: Mapping[str, Sequence[str]], findings: Findings, *, what: str) -> dict[str, Path]:
    """The file of each split: the first of its names that exists. A split without one is noted as absent.

    No file at all is an error, in which `what` is the name of the data set.
    """
    found = {}
    for split, several in names.items():
        file = first_of(root, several)
        if file is None:
            findings.absent.append(f"{split}: no {' or '.join(dict.fromkeys(Path(name).name for name in several))}")
        else:
            found[split] = file
    if not found:
        every = ", ".join(name for several in names.values() for name in several)
        raise DataError(f"{root}: no split of {what}; looked for {every}")
    return found


def need_one_of(root: Path, names: Sequence[str], *, what: str) -> Path:
    """The first of these paths below the root that exists; an error that lists them if none does."""
    found = first_of(root, names)
    if found is None:
        raise DataError(f"{root}: {what} not found; looked for {', '.join(names)}")
    return found
