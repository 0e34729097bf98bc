"""Copy finished studies here, without weights: python results/publish.py studies/main-scenes-quick ...

What is copied verifies as the original does; weights are named by their hash. Then make the pages again:
python results/page.py
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from meq.models.hub import WEIGHTS
from meq.studies import read_study, verify

RESULTS = Path(__file__).resolve().parent


def publish(folder: Path, results: Path = RESULTS) -> Path:
    """A study's folder without its weights, verified before and after."""
    study = read_study(folder)
    _check(folder)
    target, writing = results / study.name, results / f".{study.name}.writing"
    shutil.rmtree(writing, ignore_errors=True)
    shutil.copytree(folder, writing, ignore=shutil.ignore_patterns(WEIGHTS, "checkpoints"))
    _check(writing)
    shutil.rmtree(target, ignore_errors=True)
    writing.rename(target)
    return target


def _check(folder: Path) -> None:
    found = verify(folder)
    if not found.ok:
        raise SystemExit(f"{folder} does not verify: {found.faults[0].file}: {found.faults[0].message}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for name in sys.argv[1:]:
        print(publish(Path(name)))
