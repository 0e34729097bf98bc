"""WAV files: the head is read and judged first, so that nothing is decoded that is too long, cut off or no sound."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float

from meq.data.files import open_regular

MAX_SECONDS = 600.0
"""A sound that says it is longer is refused before it is decoded."""
RATES = (1_000, 384_000)
"""Samples per second, from and to: outside of them a head is wrong, and resampling could take any time."""
MAX_CHANNELS = 32
MAX_WAV_BYTES = 2**28
"""A larger file is refused before it is read: ten minutes of stereo at 48 kHz in 32 bits need less."""
MAX_CHUNKS = 1_000
"""Notes before the sound begins; a file that has more is no sound but a way to keep us reading."""
PIECE = 2**18
"""Moments that are decoded at a time."""

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
CODINGS = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "ADPCM", 80: "MPEG", 85: "MPEGLAYER3"}
WIDTHS = {PCM: (1, 2, 3, 4, 8), FLOAT: (4, 8)}
"""Bytes per sample that are read, of whole numbers and of floats."""


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
    coding: int
    """PCM, which are whole numbers, or FLOAT."""
    begin: int = 0
    """Where in the file the samples begin."""

    @property
    def seconds(self) -> float:
        return self.data_bytes / self.frame_bytes / self.rate

    @property
    def width(self) -> int:
        """Bytes per sample."""
        return self.frame_bytes // self.channels


def read_wav(source: Path | bytes) -> tuple[Float[np.ndarray, " T"], int]:
    """The samples between -1 and 1, channels averaged, and how many there are per second; of a file, or its bytes."""
    with _opened(source) as file:
        head = _read_head(file)
        mono = np.empty(head.data_bytes // head.frame_bytes, dtype=np.float32)
        file.seek(head.begin)
        for start in range(0, len(mono), PIECE):  # decoding takes several times the memory of what is decoded
            raw = file.read(min(PIECE, len(mono) - start) * head.frame_bytes)
            samples = _samples(raw, head).reshape(-1, head.channels)
            mono[start : start + PIECE] = samples[:, 0] if head.channels == 1 else samples.mean(1, dtype=np.float32)
    if not bool(np.isfinite(mono).all()):
        raise WavError("it holds samples that are not finite")
    return mono, head.rate


def read_head(source: Path | bytes) -> WavHead:
    """The head of a file that can be decoded, as far as the head tells."""
    with _opened(source) as file:
        return _read_head(file)


def _opened(source: Path | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else open_regular(source, most=MAX_WAV_BYTES)


def _read_head(file: BinaryIO) -> WavHead:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = _scan(file, size)
    if not RATES[0] <= head.rate <= RATES[1]:
        raise WavError(f"it says {head.rate:,} samples per second; from {RATES[0]:,} to {RATES[1]:,} are read")
    if not 1 <= head.channels <= MAX_CHANNELS:
        raise WavError(f"it says {head.channels} channels; from 1 to {MAX_CHANNELS} are read")
    if head.coding not in WIDTHS:
        coding = CODINGS.get(head.coding, f"coding {head.coding}")
        raise WavError(f"its samples are written as {coding}; plain numbers (PCM or float) are read, convert it")
    if head.frame_bytes % head.channels or head.width not in WIDTHS[head.coding]:
        kind = "whole numbers" if head.coding == PCM else "floats"
        widths = ", ".join(map(str, WIDTHS[head.coding]))
        raise WavError(
            f"{head.frame_bytes} bytes for {head.channels} channels of {kind}; {widths} bytes per sample are read"
        )
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
    form = None
    for _ in range(MAX_CHUNKS):
        chunk = file.read(8)
        if len(chunk) < 8:
            raise WavError("it is cut off before the sound begins")
        name, length = struct.unpack("<4sI", chunk)
        begin = file.tell()
        if name == b"data":
            if form is None or form.frame_bytes == 0:
                raise WavError("its head does not say how the samples are written")
            if length > size - begin:
                raise WavError(f"it is cut off: {length:,} bytes of sound are announced, {size - begin:,} are there")
            return replace(form, data_bytes=length, begin=begin)
        if name == b"fmt ":
            form = _form(file.read(min(length, 40)))
        file.seek(begin + length + length % 2)
    raise WavError(f"there are more than {MAX_CHUNKS:,} notes before the sound begins")


def _form(chunk: bytes) -> WavHead:
    """How the samples are written; how many there are is not known yet."""
    if len(chunk) < 16:
        raise WavError("its head is cut off")
    coding, channels, rate, _, frame_bytes, bits = struct.unpack("<HHIIHH", chunk[:16])
    if coding == EXTENSIBLE and len(chunk) >= 26:
        (coding,) = struct.unpack("<H", chunk[24:26])  # the first two bytes of its sub-format are the coding itself
    if channels and coding in WIDTHS and not 0 < bits <= 8 * (frame_bytes // channels):
        raise WavError(f"it says {bits} bits per sample, in {frame_bytes} bytes for {channels} channels")
    return WavHead(rate=rate, channels=channels, frame_bytes=frame_bytes, data_bytes=0, coding=coding)


def _samples(raw: bytes, head: WavHead) -> np.ndarray[Any, Any]:
    """Between -1 and 1: whole numbers by their range, 8 bits around 128; floats as they are."""
    if head.coding == FLOAT:
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is reported as such
            return np.frombuffer(raw, dtype=f"<f{head.width}").astype(np.float32)
    if head.width == 1:
        return (np.frombuffer(raw, dtype=np.uint8).astype(np.float32) - 128) / 128
    if head.width == 3:  # three bytes become the upper three of four, which keeps their range
        wide = np.zeros((len(raw) // 3, 4), dtype=np.uint8)
        wide[:, 1:] = np.frombuffer(raw, dtype=np.uint8).reshape(-1, 3)
        data = wide.view("<i4").reshape(-1)
    else:
        data = np.frombuffer(raw, dtype=f"<i{head.width}")
    return (data / -float(np.iinfo(data.dtype).min)).astype(np.float32)
