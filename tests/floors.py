"""The oldest versions that pyproject.toml allows, as a constraints file: `make floors` installs them and runs tests.

    python tests/floors.py pyproject.toml constraints.txt > floors.txt

torch is taken at its pin instead of its floor, since its older builds bring gigabytes of packages for GPUs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PINNED = ("torch",)


def floors(project: str, pins: str) -> list[str]:
    """`name==oldest` for every requirement of the package itself; the extras have floors too, and are not tried."""
    block = re.search(r"^dependencies = \[\n(.*?)^\]", project, flags=re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError("pyproject.toml has no list of dependencies")
    found = re.findall(r'^\s*"([A-Za-z0-9_.-]+)>=([0-9.]+)"', block[1], flags=re.MULTILINE)
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", pins, flags=re.MULTILINE))
    return [f"{name}=={pinned[name] if name in PINNED else oldest}" for name, oldest in found]


if __name__ == "__main__":
    print("\n".join(floors(*(Path(path).read_text(encoding="utf-8") for path in sys.argv[1:]))))
