"""From the bytes of a picture to its pixels: the only place where pictures are decoded.

Pillow knows several dozen formats, some of which start other programs (EPS starts Ghostscript) and many of which fail
in ways of their own. Whatever a file is called, only PICTURE_FORMATS are tried on it, its head is judged before
anything is unpacked, and every failure is a DataError.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from meq.data.files import open_regular
from meq.data.findings import DataError

PICTURE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 80_000_000
"""A picture that says it is larger is refused before it is decoded: a few kilobytes can unpack to gigabytes."""
MAX_PICTURE_BYTES = 2**28
"""A larger file is refused before it is read: MAX_PIXELS without any compression need less."""
LARGE_PIXELS = 2**24
"""A JPEG of more pixels is scaled while it is read, where the reader says which size it needs. Up to here, and without
a stated size, a picture is decoded as it is, so that its features are the same in every version."""
SPARE = 2
"""So many times the pixels that are needed are kept, since the reader scales once more, and with more care."""


class TooManyPixelsError(DataError):
    """A picture that is larger than what is decoded."""


class NoPictureError(DataError):
    """A file in none of the formats that are read."""


def open_picture(source: Path | bytes, *, name: str | None = None) -> Image.Image:
    """The whole picture, decoded, in RGB; `name` is what errors call it. A missing file stays a FileNotFoundError."""
    with _opened(source, name or str(source)) as image:
        return image.convert("RGB")


def open_scaled(source: Path | bytes, side: int, *, name: str | None = None) -> tuple[Image.Image, tuple[int, int]]:
    """The picture for a reader who needs `side` pixels of its shorter side, and the size of the whole picture.

    A JPEG of more than LARGE_PIXELS is decoded at a half, a quarter or an eighth of its size, as long as the shorter
    side keeps SPARE times what is needed. Every other picture is decoded as it is.
    """
    with _opened(source, name or str(source)) as image:
        size = image.size
        if size[0] * size[1] > LARGE_PIXELS:
            share = SPARE * side / min(size)  # Pillow scales to no less than what it is asked for
            wanted = max(1, round(size[0] * share)), max(1, round(size[1] * share))
            image.draft("RGB", wanted)  # does nothing for formats other than JPEG
        return image.convert("RGB"), size


def size_of_picture(source: Path | bytes, *, name: str | None = None) -> tuple[int, int]:
    """Width and height as the file's head says, without decoding it."""
    with _opened(source, name or str(source)) as image:
        return image.size


@contextmanager
def _opened(source: Path | bytes, name: str) -> Iterator[Image.Image]:
    """The picture with its head read and judged; whatever goes wrong with it inside the block is a DataError."""
    try:
        with warnings.catch_warnings():
            # of a size below which our own limit lies, and of damaged notes beside the picture
            warnings.simplefilter("ignore")
            file = io.BytesIO(source) if isinstance(source, bytes) else open_regular(source, most=MAX_PICTURE_BYTES)
            with file, Image.open(file, formats=PICTURE_FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    large = f"{image.width:,} x {image.height:,} pixels; at most {MAX_PIXELS:,} are decoded"
                    raise TooManyPixelsError(f"{name}: {large}: scale it down")
                yield image
    except (DataError, FileNotFoundError):
        raise
    except Image.DecompressionBombError as error:
        raise TooManyPixelsError(
            f"{name}: far more than the {MAX_PIXELS:,} pixels that are decoded: scale it down"
        ) from error
    except UnidentifiedImageError as error:
        listed = f"{', '.join(PICTURE_FORMATS[:-1])} or {PICTURE_FORMATS[-1]}"
        raise NoPictureError(f"{name}: not a readable picture: it is no {listed} file; convert it") from error
    except MemoryError as error:
        raise DataError(f"{name}: not a readable picture: decoding it takes more memory than there is") from error
    except Exception as error:  # a damaged file can fail in any way inside Pillow: IndexError, zlib.error, ...
        raise DataError(f"{name}: not a readable picture: {str(error) or type(error).__name__}") from error
