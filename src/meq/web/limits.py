"""How much an endpoint takes. Apart from the server itself, since the command line reads it for its help."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request to an endpoint may ask for, and how many may wait."""

    max_batch: int = 64
    """Examples in one request."""
    max_megabytes: int = 16
    """Megabytes of one request. Pictures and sounds are base64 there, which takes a third more than their files."""
    max_megapixels: int = 20
    """Million pixels of one picture."""
    max_seconds: float = 60.0
    """Seconds of one sound."""
    max_regions: int = 100
    """Regions of one picture."""
    max_waiting: int = 16
    """Requests that are answered or wait for it; they are answered one after the other."""
    timeout_seconds: float = 60.0
    """Seconds until a request is given up that has not been answered."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ValueError(f"`{each.name}` must be more than 0, got {getattr(self, each.name)}")
