"""Files made to hang, to fill the memory, or to fail in a way of their own; each a few kilobytes."""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

SCALAR = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'"
FROM_BUFFER = b"cnumpy.core.numeric\n_frombuffer\n(S''\ncnumpy\ndtype\n(S'f8'\nI0\nI1\ntR("
EXPONENTIAL = b"\x80\x02)" + b"2\x86" * 40  # a pair of a pair of a pair ...: 2 ** 40 leaves

PICKLES: dict[str, bytes] = {
    "key of pairs of pairs": b"\x80\x04}" + EXPONENTIAL[2:] + b"K\x01s.",
    "keys at once": b"\x80\x04}(" + EXPONENTIAL[2:] + b"K\x01u.",
    "old dictionary": b"(" + EXPONENTIAL[2:] + b"I1\nd.",
    "element of a set": b"\x80\x04\x8f(" + EXPONENTIAL[2:] + b"\x90.",
    "frozen sets of frozen sets": b"\x80\x04(\x91" + b"2q\x00(h\x00(h\x00\x91\x91" * 1 + EXPONENTIAL[2:] + b"\x91.",
    "frozenset by its name": b"cbuiltins\nfrozenset\n(" + EXPONENTIAL[2:] + b"\x85tR.",
    "ordered dictionary of pairs": b"ccollections\nOrderedDict\n((" + EXPONENTIAL[2:] + b"K\x01\x86ltR.",
    "values of pairs of pairs": EXPONENTIAL + b".",
    "an object array of them": (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1\ntcnumpy\ndtype\n(S'O8'\nI0\nI1\n"
        b"tR(I3\nS'|'\nNNNI-1\nI-1\nI63\ntbI00\n(" + EXPONENTIAL[2:] + b"ltb."
    ),
    "says that gigabytes follow": b"\x80\x04\x8e" + struct.pack("<Q", 2**33) + b"x.",
    "says that a bytearray follows": b"\x80\x05\x96" + struct.pack("<Q", 2**33) + b"x.",
    "says that a long text follows": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
    "a frame of gigabytes": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"N.",
    "a million marks": b"(" * 3_000_000 + b".",
    "a million sets": b"\x80\x04" + b"\x8f" * 3_000_000 + b".",
    "a million remembered": b"\x80\x04N" + b"\x94" * 3_000_000 + b".",
    "copies without end": b"c_codecs\nencode\nq\x01X" + struct.pack("<I", 10**6) + b"a" * 10**6 + b"q\x02\x85q\x030"
    + b"h\x01h\x03R" * 5000 + b".",
    "a structured dtype": SCALAR + b"f8,O'\nI0\nI1\ntRS'12345678'\ntR.",
    "a dtype of gigabytes": SCALAR + b"S2147483647'\nI0\nI1\ntRS''\ntR.",
    "a dtype without end": SCALAR + b"f8," * 300_000 + b"f8'\nI0\nI1\ntRS''\ntR.",
    "a shape without end": FROM_BUFFER
    + b"J\xff\xff\xff\x7f" * 200_000 + b"tS'C'\ntR.",
    "a shape of nothing": FROM_BUFFER + b"L4611686018427387904L\nI0\ntS'C'\ntR.",
    "a number of megabytes": b"\x80\x02\x8b" + struct.pack("<i", 10**6) + b"\x01" * 10**6 + b".",
    "keys that share their hash": b"\x80\x02}("
    + b"".join(b"\x8a\x0a" + (n * (2**61 - 1)).to_bytes(10, "little") + b"N" for n in range(1, 40_000)) + b"u.",
    "a persistent id of pairs": EXPONENTIAL + b"Q.",
    "a name with escapes": b"c\x1b[2J\x1b]0;owned\x07\nsystem\n.",
}  # fmt: skip


def png(width: int, height: int, body: bytes = b"", *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG that says it has that size; `extra` chunks stand before its pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    chunks = b"".join(chunk(*each) for each in extra)
    return b"\x89PNG\r\n\x1a\n" + head + chunks + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def qoi(width: int, height: int, body: bytes) -> bytes:
    return b"qoif" + struct.pack(">IIBB", width, height, 3, 0) + body


def dds(four: bytes) -> bytes:
    fields = [124, 0x1007, 16, 16, 0, 0, 0, *[0] * 11, 32, 4, struct.unpack("<I", four)[0], *[0] * 5, 0x1000, *[0] * 4]
    return b"DDS " + struct.pack(f"<{len(fields)}I", *fields) + bytes(64)


def saved(form: str, **options: object) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((24, 16), 60).convert("RGB").save(out, form, **options)
    return out.getvalue()


EPS = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    b"(%pipe%touch owned) (w) file closefile\nshowpage\n%%EOF\n"
)
PICTURES: dict[str, bytes] = {
    "empty": b"",
    "EPS": EPS,
    "QOI cut off": qoi(10, 10, b""),
    "QOI of wrong bytes": qoi(4, 4, b"\x00\xfe\xff"),
    "DDS of an unknown kind": dds(b"XXXX"),
    "DDS of DX10": dds(b"DX10"),
    "AVIF": b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(200),
    "PPM": b"P6 3 3 255\n" + bytes(27),
    "FITS": b"SIMPLE  =                    T".ljust(80) + b"END".ljust(80),
    "ICO": b"\0\0\1\0\1\0\xff\xff\0\0\1\0\x20\0" + bytes(40),
    "bomb": png(60_000, 60_000),
    "large": png(9_000, 9_000),
    "cut off": saved("PNG")[:-30],
    "text that unpacks": png(8, 8, b"", (b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8)))),
    "notes without end": png(8, 8, b"", *[(b"tEXt", b"key\0" + b"v" * 10)] * 20_000),
    "profile that unpacks": png(8, 8, b"", (b"iCCP", b"a\0\0" + zlib.compress(bytes(10**8)))),
    "TIFF of one side": b"II*\0\x08\0\0\0\x02\0\0\1\4\0\1\0\0\0\x10\0\0\0\1\1\4\0\1\0\0\0\xff\xff\xff\x7f" + bytes(4),
    "GIF of nothing": b"GIF89a\xff\xff\xff\xff\xf7\0\0",
    "BMP of wrong depth": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 9, 9, 1, 7, 0, 0, 0, 0, 0, 0),
    "WEBP cut off": saved("WEBP")[:40],
}  # fmt: skip


def wav(
    data: bytes,
    *,
    coding: int = 1,
    channels: int = 1,
    rate: int = 8000,
    frame: int = 2,
    bits: int = 16,
    claimed: int | None = None,
) -> bytes:
    """A WAV file whose head says whatever it is told to."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, coding, channels, rate, rate * frame, frame, bits)
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(data) if claimed is None else claimed) + data
    return struct.pack("<4sI", b"RIFF", len(body)) + body


WAVS: dict[str, bytes] = {
    "5 bytes a sample": wav(bytes(100), frame=5, bits=40),
    "7 bytes a sample": wav(bytes(140), frame=7, bits=56),
    "1 bit": wav(bytes(100), frame=0, bits=1),
    "half a byte a channel": wav(bytes(100), channels=2, frame=1, bits=4),
    "more bits than bytes": wav(bytes(100), frame=1, bits=16),
    "no bits": wav(bytes(100), bits=0),
    "half floats": wav(bytes(100), coding=3, frame=2, bits=16),
    "floats of 10 bytes": wav(bytes(100), coding=3, frame=10, bits=80),
    "no channels": wav(bytes(100), channels=0),
    "too many channels": wav(bytes(2 * 65535), channels=65535, frame=65534),
    "A-law": wav(bytes(100), coding=6, frame=1, bits=8),
    "extensible of nothing": wav(bytes(100), coding=0xFFFE),
    "says gigabytes": wav(bytes(100), claimed=2**32 - 1),
    "chunks without end": b"RIFF\xff\xff\xff\xffWAVE" + b"note\0\0\0\0" * 200_000,
    "infinite": wav(np.full(9, np.inf, "<f4").tobytes(), coding=3, frame=4, bits=32),
}

JSONS: dict[str, bytes] = {
    "brackets": b"[" * 100_000,
    "closed brackets": b"[" * 100_000 + b"]" * 100_000,
    "deep": b"[" * 900 + b"]" * 900,
    "objects": b'{"a":' * 100_000,
    "key twice": b'{"train": ["a"], "train": ["b"]}',
    "key twice, below": b'{"train": {"\\u001b[2J": 1, "\\u001b[2J": 2}}',
    "NaN": b'{"train": NaN}',
    "Infinity": b'{"train": -Infinity}',
    "digits": b'{"train": ' + b"9" * 100_000 + b"}",
    "not UTF-8": b'{"train": "\xff"}',
    "UTF-16": '{"train": []}'.encode("utf-16"),
    "NULs": bytes(100_000),
    "empty": b"",
}


def claims(shape: tuple[int, ...], dtype: str = "f4", **options: object) -> Callable[[h5py.Group], None]:
    """A data set of that shape of which nothing was ever written."""
    return lambda group: group.create_dataset("features", shape, dtype, **options)


def linked(path: Path) -> Callable[[h5py.Group], None]:
    def write(group: h5py.Group) -> None:
        group["features"] = h5py.ExternalLink(str(path), "/x")

    return write


def external(path: Path) -> Callable[[h5py.Group], None]:
    return lambda group: group.create_dataset("features", (3, 3), "f4", external=[(str(path), 0, h5py.h5f.UNLIMITED)])


def virtual(path: Path) -> Callable[[h5py.Group], None]:
    layout = h5py.VirtualLayout(shape=(3, 3), dtype="f4")
    layout[:] = h5py.VirtualSource(str(path), "x", shape=(3, 3))
    return lambda group: group.create_virtual_dataset("features", layout)


def hdf5_cases(path: Path) -> dict[str, Callable[[h5py.Group], None]]:
    structure = np.dtype([("a", "f4"), ("b", "S10")])
    return {
        "claims a terabyte": claims((2**30, 300), chunks=(1, 300)),
        "nothing stored in millions of chunks": claims((2**24, 1), chunks=(1, 1)),
        "nothing stored of what it claims": claims((2**25, 1), chunks=(1000, 1)),
        "texts that are not there": claims((2**23, 1), h5py.string_dtype(), chunks=(1000, 1)),
        "claims many rows": claims((2**40, 3), chunks=(1, 3)),
        "a chunk of gigabytes": claims((3, 3), maxshape=(None, 3), chunks=(2**28, 3)),
        "texts of gigabytes": claims((3, 1), "S1000000000", chunks=(1, 1)),
        "unknown filter": claims((3, 3), chunks=(3, 3), scaleoffset=2),
        "external link": linked(path),
        "external data": external(path),
        "virtual data": virtual(path),
        "structures": lambda group: group.create_dataset("features", data=np.zeros((3, 3), structure)),
        "lists of any length": lambda group: group.create_dataset("features", (3, 3), h5py.vlen_dtype("f8")),
        "references": lambda group: group.create_dataset("features", (3, 3), h5py.ref_dtype),
        "complex numbers": claims((3, 3), "c8"),
        "scalar": lambda group: group.create_dataset("features", data=1.0),
        "empty": lambda group: group.create_dataset("features", data=h5py.Empty("f4")),
        "five dimensions": claims((3, 3, 3, 3, 3)),
        "a group": lambda group: group.create_group("features"),
        "a soft link": lambda group: group.__setitem__("features", h5py.SoftLink("/nowhere")),
    }


PROBE = pickle.dumps({"train": {"text": np.ones((2, 3, 4), np.float32)}})
"""A pickle that is as it should be."""
