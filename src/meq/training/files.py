"""`meq.files` by the name that training has for it."""

from meq.files import (
    BusyError,
    NoSpaceError,
    alone,
    free_bytes,
    in_bytes,
    is_full,
    remove,
    room_in_words,
    same_place,
    sha256,
    sync,
    write_bytes,
    write_json,
)

__all__ = [
    "BusyError",
    "NoSpaceError",
    "alone",
    "free_bytes",
    "in_bytes",
    "is_full",
    "remove",
    "room_in_words",
    "same_place",
    "sha256",
    "sync",
    "write_bytes",
    "write_json",
]
