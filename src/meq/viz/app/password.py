"""The password of the page: given or read from a file, compared in constant time, with few attempts per minute."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import stat
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SHORTEST = 8
"""Characters of a password."""
WRONG = 10
"""Wrong passwords from one address within `WINDOW_SECONDS`, after which it is refused for as long."""
WINDOW_SECONDS = 60.0
PAUSE_SECONDS = 0.5
"""Delay of the answer to a wrong one."""
ADDRESSES = 1024
"""Addresses whose wrong passwords are remembered; the oldest is forgotten first."""
FORM = "give USER:PASSWORD, with a password of at least {shortest} characters"


@dataclass(frozen=True)
class Password:
    """A name and a password, kept as a hash of both."""

    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, text: str) -> Password:
        """From USER:PASSWORD."""
        user, colon, password = text.partition(":")
        if not colon or not user:
            raise ValueError(f"the password of the page has no name before it: {FORM.format(shortest=SHORTEST)}")
        if len(password) < SHORTEST:
            raise ValueError(f"the password of the page is too short: {FORM.format(shortest=SHORTEST)}")
        return cls(_digest(text.encode()))

    @classmethod
    def read(cls, path: Path) -> Password:
        """From the first line of a file that nobody else may read."""
        try:
            if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise ValueError(f"{path} holds a password that others may read: chmod 600 {path}")
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a text file: its first line is to hold USER:PASSWORD") from error
        except OSError as error:
            raise ValueError(f"the password cannot be read from {path}: {error.strerror}") from error
        return cls.of(lines[0].strip() if lines else "")

    def opens(self, header: str) -> bool:
        """Does the header Authorization hold it? A wrong one takes as long to check as the right one."""
        scheme, _, said = header.partition(" ")
        try:
            given = base64.b64decode(said.strip(), validate=True) if scheme.lower() == "basic" else b""
        except (binascii.Error, ValueError):
            given = b""
        return hmac.compare_digest(_digest(given), self.digest)


class Attempts:
    """Wrong passwords by address, so that nobody tries thousands."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def too_many(self, address: str) -> bool:
        """Has this address been wrong so often that it has to wait?"""
        times = self._wrong.get(address, deque())
        while times and times[0] <= self._clock() - WINDOW_SECONDS:
            times.popleft()
        return len(times) >= WRONG

    def count(self, address: str) -> None:
        """Remember a wrong password of this address."""
        self._wrong.setdefault(address, deque(maxlen=WRONG)).append(self._clock())
        self._wrong.move_to_end(address)
        while len(self._wrong) > ADDRESSES:
            self._wrong.popitem(last=False)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
