"""Masks that show where something is in a picture, opened when they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meq.data.content import PictureFile
from meq.data.findings import DataError
from meq.data.pictures import size_of_picture


@dataclass(frozen=True, slots=True)
class MaskFile:
    """Where something is in a picture, as a file below the folder of its data set."""

    path: Path
    root: Path
    picture: PictureFile

    def open(self) -> np.ndarray[Any, Any]:
        """True where it is, H W in pixels of the picture."""
        return open_mask(self.path, self.root, picture=self.picture)

    def __str__(self) -> str:
        return str(self.path)


def open_mask(path: Path, root: Path, *, picture: PictureFile | None = None) -> np.ndarray[Any, Any]:
    """True where the mask is white, H W. It must hold black and white only, and have the size of its picture."""
    pixels = np.asarray(PictureFile(path, root).open())  # H W 3; a grey file has three equal channels
    if not ((pixels == 0) | (pixels == 255)).all() or (pixels != pixels[..., :1]).any():
        raise DataError(f"{path}: not a mask: it holds other values than 0 and 255")
    if picture is not None and (size := picture_size(picture)) != pixels.shape[1::-1]:
        width, height = pixels.shape[1::-1]
        raise DataError(f"{path}: {width} x {height} pixels, but its picture {picture} has {size[0]} x {size[1]}")
    return pixels[..., 0] == 255


def picture_size(picture: PictureFile) -> tuple[int, int]:
    """Width and height as the file's head says, without decoding it; an error where the head is already wrong."""
    try:
        return size_of_picture(picture.checked_path(), name=str(picture))
    except FileNotFoundError as error:
        raise DataError(f"{picture}: the picture is missing") from error
