"""WAV files: the head is read and judged first, so that nothing is decoded that is too long, cut off or no sound."""

from __future__ import annotations

import os
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float

MAX_SECONDS = 600.0
"""A sound that says it is longer is refused before it is decoded."""
RATES = (1_000, 384_000)
"""Samples per second, from and to: outside of them a head is wrong, and resampling could take any time."""
MAX_CHANNELS = 32


class WavError(ValueError):
    """Why a file is no sound that can be used."""


@dataclass(frozen=True, kw_only=True)
class WavHead:
    """What a WAV file says of itself."""

    rate: int
    channels: int
    frame_bytes: int
    """Bytes of one moment, all channels together."""
    data_bytes: int

    @property
    def seconds(self) -> float:
        return self.data_bytes / self.frame_bytes / self.rate


def read_wav(path: Path) -> tuple[Float[np.ndarray, " T"], int]:
    """The samples between -1 and 1, channels averaged, and how many there are per second."""
    from scipy.io import wavfile

    read_head(path)
    with warnings.catch_warnings():  # of chunks that are no sound; what matters was checked with the head
        warnings.simplefilter("ignore", wavfile.WavFileWarning)
        rate, data = wavfile.read(path)
    samples = _between_ones(data)
    mono = samples if samples.ndim == 1 else samples.mean(axis=1, dtype=np.float32)
    if not bool(np.isfinite(mono).all()):
        raise WavError("it holds samples that are not finite")
    return mono, int(rate)


def read_head(path: Path) -> WavHead:
    """The head of a file that can be decoded, as far as the head tells."""
    with open(path, "rb") as file:
        head = _scan(file, os.fstat(file.fileno()).st_size)
    if not RATES[0] <= head.rate <= RATES[1]:
        raise WavError(f"it says {head.rate:,} samples per second; from {RATES[0]:,} to {RATES[1]:,} are read")
    if not 1 <= head.channels <= MAX_CHANNELS:
        raise WavError(f"it says {head.channels} channels; from 1 to {MAX_CHANNELS} are read")
    if head.data_bytes < head.frame_bytes:
        raise WavError("it is empty, there are no samples in it")
    if head.seconds > MAX_SECONDS:
        raise WavError(
            f"it is {head.seconds:,.0f} seconds long, more than the {MAX_SECONDS:,.0f} that are read; cut it"
        )
    return head


def _scan(file: BinaryIO, size: int) -> WavHead:
    """Chunk by chunk until the sound itself begins."""
    start = file.read(12)
    if start[:4] != b"RIFF" or start[8:12] != b"WAVE":
        raise WavError(
            "it is no WAV file, which begins with RIFF and WAVE; convert it to WAV" if start else "it is empty"
        )
    form: tuple[int, int, int] | None = None
    while len(chunk := file.read(8)) == 8:
        name, length = struct.unpack("<4sI", chunk)
        if name == b"data":
            return _with_form(form, length, left=size - file.tell())
        after = file.tell() + length + length % 2
        if name == b"fmt ":
            form = _form(file.read(min(length, 16)))
        file.seek(after)
    raise WavError("it is cut off before the sound begins")


def _form(chunk: bytes) -> tuple[int, int, int]:
    if len(chunk) < 16:
        raise WavError("its head is cut off")
    _, channels, rate, _, frame_bytes, _ = struct.unpack("<HHIIHH", chunk)
    return rate, channels, frame_bytes


def _with_form(form: tuple[int, int, int] | None, length: int, *, left: int) -> WavHead:
    if form is None or form[2] == 0:
        raise WavError("its head does not say how the samples are written")
    if length > left:
        raise WavError(f"it is cut off: {length:,} bytes of sound are announced, {left:,} are there")
    rate, channels, frame_bytes = form
    return WavHead(rate=rate, channels=channels, frame_bytes=frame_bytes, data_bytes=length)


def _between_ones(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Integers by their range, 8 bits around 128; floats as they are."""
    if data.dtype.kind == "f":
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is reported as such
            return data.astype(np.float32)
    if data.dtype == np.uint8:
        return (data.astype(np.float32) - 128) / 128
    return (data / -float(np.iinfo(data.dtype).min)).astype(np.float32)
