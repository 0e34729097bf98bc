"""Draw the pictures of the README from the records of the study of trails: python docs/images/trails.py"""

from __future__ import annotations

from pathlib import Path

from meq.viz.staircase import staircases, trail
from meq.viz.study_figures import open_reported_study
from meq.viz.style import as_png

HERE = Path(__file__).resolve().parent
STUDY = HERE.parents[1] / "results" / "duels"


def main() -> None:
    """The staircase on the split with the deepest problems, and one trail that lights up."""
    found = open_reported_study(STUDY)
    drawn = {"staircase": staircases(found)[-1], "trail": trail(found)[0]}
    for name, drawing in drawn.items():
        place = HERE / f"{name}.png"
        place.write_bytes(as_png(drawing.figure, dpi=110))
        print(place)


if __name__ == "__main__":
    main()
