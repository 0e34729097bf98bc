"""By which name the page was asked for, and by whose page: what a stranger's web site can make a browser do ends here.

A browser lets a site speak to any address under the site's own name, once that name is made to lead there (DNS
rebinding). The name is in the header Host, the site that asks in the header Origin; no page can forge either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

THIS_MACHINE = ("localhost", "127.0.0.1", "[::1]")
FOREIGN = ("cross-site", "same-site")
"""What a browser says of requests that another site, or another port of this machine, has caused."""
NAMED = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True)
class HostName:
    """A name and, unless any will do, a port."""

    name: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> HostName | None:
        """From NAME or NAME:PORT; None for anything else."""
        found = NAMED.fullmatch(text.lower())
        if found is None:
            return None
        return cls(found["name"], int(found["port"]) if found["port"] else None)


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The names that this page answers to."""

    allowed: tuple[HostName, ...] = ()
    """Besides those of this machine and the address that was connected to."""

    @classmethod
    def of(cls, names: Sequence[str]) -> Hosts:
        """As a person lists them: NAME, which allows every port, or NAME:PORT."""
        parsed = {name: HostName.parse(name) for name in names}
        wrong = [name for name, found in parsed.items() if found is None]
        if wrong:
            raise ValueError(
                f"{wrong[0]!r} is not the name of a host: give a name or an address, such as models.example.org or "
                "192.168.0.7:7860, without http:// and without a path"
            )
        return cls(allowed=tuple(found for found in parsed.values() if found is not None))

    def knows(self, host: str, server: tuple[str, int | None] | None) -> bool:
        """Is it a name of ours? `server` is the address and port that the request came in at."""
        asked = HostName.parse(host)
        if asked is None:
            return False
        if self._allows(asked):
            return True
        here, port = server or ("", None)
        return (asked.port or 80) == port and (asked.name in THIS_MACHINE or _same_address(asked.name, here))

    def is_own(self, origin: str, host: str) -> bool:
        """Is it this very page that asks, or one at a name that is allowed?"""
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https"):  # "null" is what a page without a home says
            return False
        asking = HostName.parse(parts.netloc)
        return asking is not None and (parts.netloc.lower() == host.lower() or self._allows(asking))

    def _allows(self, asked: HostName) -> bool:
        return any(each.name == asked.name and each.port in (None, asked.port) for each in self.allowed)


def _same_address(name: str, here: str) -> bool:
    """Nobody can make a number lead elsewhere, so the one that was connected to is a name of ours."""
    try:
        return _plain(name.strip("[]")) == _plain(here)
    except ValueError:
        return False


def _plain(address: str) -> str:
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)
