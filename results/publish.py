"""Copy finished studies, or a folder of the whole paper, here without weights:

    python results/publish.py studies/main-scenes-quick studies/paper-quick

What is copied verifies as the original does; weights are named by their hash. Then make the pages again:
python results/page.py
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from meq.models.hub import WEIGHTS
from meq.studies import read_study
from meq.studies.whole_paper import is_paper, verify_any

RESULTS = Path(__file__).resolve().parent


def publish(folder: Path, results: Path = RESULTS) -> Path:
    """The folder without its weights, verified before and after."""
    name = folder.resolve().name if is_paper(folder) else read_study(folder).name
    _check(folder)
    target, writing = results / name, results / f".{name}.writing"
    shutil.rmtree(writing, ignore_errors=True)
    shutil.copytree(folder, writing, ignore=shutil.ignore_patterns(WEIGHTS, "checkpoints"))
    _check(writing)
    shutil.rmtree(target, ignore_errors=True)
    writing.rename(target)
    return target


def _check(folder: Path) -> None:
    found = verify_any(folder)
    if not found.ok:
        raise SystemExit(f"{folder} does not verify: {found.faults[0].file}: {found.faults[0].message}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for name in sys.argv[1:]:
        print(publish(Path(name)))
