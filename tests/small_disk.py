"""A disk of a few hundred kilobytes, where the machine lets the tests mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(place: Path, kilobytes: int) -> Iterator[Path]:
    """A file system in memory at `place`; the test is skipped where mounting is not allowed."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs a small disk, and there is no mount on this machine")
    if done.returncode != 0:
        pytest.skip(f"needs a small disk, and mounting one is not allowed here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_up(place: Path, leave: int) -> Path:
    """A file that takes what is left of the disk, but for so many bytes."""
    import shutil

    filler = place / "filler"
    filler.write_bytes(b"0" * max(0, shutil.disk_usage(place).free - leave))
    return filler
