"""What figures need; asked before the modules that draw are imported."""

from __future__ import annotations

from importlib.util import find_spec


def require_matplotlib() -> None:
    """An error that names the extra, if matplotlib is not there."""
    if find_spec("matplotlib") is None:
        raise ImportError("figures need matplotlib: pip install 'meq[viz]'")
