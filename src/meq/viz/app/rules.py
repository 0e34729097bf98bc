"""Who may use the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from meq.viz.app.hosts import Hosts
from meq.viz.app.password import Password


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Under which names, and with which password."""

    hosts: Hosts = field(default_factory=Hosts)
    password: Password | None = None
    """None: whoever can reach the page may use it."""
