from __future__ import annotations

import os
from pathlib import Path

import pytest

from meq.files import sha256, write_bytes


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"first")
    write_bytes(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"second"
    assert sha256(tmp_path / "a") == "16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4"
    assert os.listdir(tmp_path) == ["a"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    write_bytes(tmp_path / "a", b"first")
    monkeypatch.setattr("meq.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]
