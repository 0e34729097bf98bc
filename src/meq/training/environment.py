"""Where a run happened: versions, the working copy's commit, the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from meq.version import __version__

PACKAGE = Path(__file__).resolve().parents[1]
RECORDED = ("torch", "numpy", "accelerate", "safetensors", "pyarrow")


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The working copy that the code came from."""

    sha: str
    dirty: bool
    """The package's folder differs from that commit, so the commit alone does not give the code."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The machine, as far as it can decide a result or its cost."""

    device: str
    """cpu, cuda, mps, ..."""
    name: str
    processors: int
    threads: int
    system: str


@dataclass(frozen=True, kw_only=True)
class Session:
    """One start of a run: its beginning, or a later time it was resumed."""

    step: int
    """Updates that were done before."""
    started: str
    """UTC, ISO 8601."""
    versions: Mapping[str, str]
    commit: Commit | None
    """None where the code is an installed package, not a working copy."""
    hardware: Hardware


def session(step: int, device: torch.device) -> Session:
    """What is true here and now."""
    return Session(
        step=step,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions=versions(),
        commit=commit_of(PACKAGE),
        hardware=hardware(device),
    )


def versions() -> dict[str, str]:
    found = {"meq": __version__, "python": platform.python_version()}
    for name in RECORDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit_of(folder: Path) -> Commit | None:
    """The commit that a folder of code is checked out from; None if git does not track it.

    A package installed into an environment that lies inside some repository is not that repository's code.
    """
    if not _git(folder, "ls-files", "--", "."):
        return None
    sha = _git(folder, "rev-parse", "--verify", "HEAD")
    return None if not sha else Commit(sha=sha, dirty=bool(_git(folder, "status", "--porcelain", "--", ".")))


def _git(folder: Path, *arguments: str) -> str:
    """What git says, or nothing: no git and no repository are the same to a record."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def hardware(device: torch.device) -> Hardware:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return Hardware(
        device=device.type,
        name=name,
        processors=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        system=f"{platform.system()} {platform.machine()}",
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
