from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from meq.data.content import SoundFile, fingerprint_of
from meq.data.findings import DataError

RATE = 8000
WAVE = np.sin(np.arange(400) / 7) * 0.5


def written(folder: Path, data: np.ndarray, *, rate: int = RATE) -> SoundFile:
    wavfile.write(folder / "a.wav", rate, data)
    return SoundFile(folder / "a.wav", folder)


def packed(data: bytes, *, rate: int = RATE, channels: int = 1, bits: int = 16, extra: bytes = b"") -> bytes:
    frame = channels * bits // 8
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * frame, frame, bits)
    body = b"WAVE" + form + extra + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


@pytest.mark.parametrize(
    ("data", "close"),
    [
        ((WAVE * 127 + 128).round().astype(np.uint8), 0.02),
        ((WAVE * 32767).astype(np.int16), 1e-3),
        ((WAVE * 2147483647).astype(np.int32), 1e-6),
        (WAVE.astype(np.float32), 1e-6),
        (WAVE.astype(np.float64), 1e-6),
    ],
)
def test_samples_lie_between_ones_however_they_are_written(data: np.ndarray, close: float, tmp_path: Path) -> None:
    sound = written(tmp_path, data)
    samples, rate = sound.open()
    assert (samples.dtype, samples.shape, rate) == (np.float32, (400,), RATE)
    assert np.allclose(samples, WAVE, atol=close)
    assert sound.seconds() == 400 / RATE


def test_24_bits_are_read_and_other_chunks_are_passed_over_in_silence(tmp_path: Path) -> None:
    numbers = (WAVE * 8388607).astype("<i4")
    data = b"".join(number.tobytes()[:3] for number in numbers)
    extra = struct.pack("<4sI", b"odd ", 3) + b"abc\0"
    (tmp_path / "a.wav").write_bytes(packed(data, bits=24, extra=extra))
    samples, _ = SoundFile(tmp_path / "a.wav", tmp_path).open()
    assert np.allclose(samples, WAVE, atol=1e-6)


def test_channels_are_averaged(tmp_path: Path) -> None:
    both = np.stack([WAVE, np.zeros(400)], axis=1).astype(np.float32)
    assert np.allclose(written(tmp_path, both).open()[0], WAVE / 2, atol=1e-6)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (packed(b""), "it is empty, there are no samples in it"),
        (b"OggS" + bytes(50), "it is no WAV file"),
        (packed(bytes(800))[:30], "its head is cut off"),
        (packed(bytes(800))[:38], "cut off before the sound begins"),
        (packed(bytes(800))[:400], "cut off: 800 bytes of sound are announced, 356 are there"),
        (packed(bytes(800), rate=0), "0 samples per second"),
        (packed(bytes(800), rate=2_000_000_000), "2,000,000,000 samples per second"),
        (packed(bytes(800), channels=40), "40 channels"),
        (packed(bytes(800), channels=0), "does not say how the samples are written"),
        (packed(bytes(2 * 601 * 1000), rate=1000), "601 seconds long, more than the 600 that are read"),
        (packed(np.full(9, np.nan, "<f4").tobytes(), bits=32).replace(b"\x10\0\0\0\1\0", b"\x10\0\0\0\3\0"), "finite"),
        (packed(bytes(800)).replace(b"\x10\0\0\0\1\0", b"\x10\0\0\0\x55\0"), "MPEGLAYER3"),
    ],
)
def test_what_is_no_whole_sound_is_refused_in_words(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.wav: not a readable sound: .*{said}"):
        SoundFile(tmp_path / "a.wav", tmp_path).open()


def test_a_file_of_any_bytes_is_read_or_refused(tmp_path: Path) -> None:
    whole = packed((WAVE * 32767).astype("<i2").tobytes()[:80])
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        content[generator.integers(44)] = generator.integers(256)
        (tmp_path / "a.wav").write_bytes(content)
        try:
            samples, _ = SoundFile(tmp_path / "a.wav", tmp_path).open()
            assert samples.ndim == 1
        except DataError:
            refused += 1
    assert refused > 50


def test_a_missing_sound_and_one_outside_of_the_root_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    written(tmp_path, WAVE.astype(np.float32))
    (root / "link.wav").symlink_to(tmp_path / "a.wav")
    for sound in (SoundFile(root / "link.wav", root), SoundFile(root / ".." / "a.wav", root)):
        for read in (sound.open, sound.seconds, sound.fingerprint):
            with pytest.raises(DataError, match=r"leads outside of .*root, and is not followed"):
                read()
    with pytest.raises(DataError, match=r"none\.wav: the sound is missing"):
        SoundFile(root / "none.wav", root).open()


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    first = fingerprint_of(written(tmp_path, WAVE.astype(np.float32)))
    (tmp_path / "b.wav").write_bytes((tmp_path / "a.wav").read_bytes())
    assert fingerprint_of(SoundFile(tmp_path / "b.wav", tmp_path)) == first
    assert fingerprint_of(written(tmp_path, -WAVE.astype(np.float32))) != first
