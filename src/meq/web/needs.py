"""An error in words where the extra `serve` is not installed: modules that serve import this one before its parts."""

from __future__ import annotations

from meq.errors import require

for module in ("fastapi", "starlette", "uvicorn"):
    require(module, "serving")
