"""An error in words where matplotlib is not installed: modules that draw import this one before it."""

from __future__ import annotations

from meq.errors import require

require("matplotlib", "drawing")
