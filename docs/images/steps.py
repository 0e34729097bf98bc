"""Draw the picture of docs/pictures.md from a run on `scenes`: python docs/images/steps.py RUN

RUN is an equilibrium of small size, such as studies/main-scenes-quick/runs/meq/seed-42.
"""

from __future__ import annotations

import sys
from pathlib import Path

from meq.data import open_data
from meq.runs import load_run
from meq.runs.explain import Explainer
from meq.viz.grid import explanation_grid
from meq.viz.style import as_png

STEPS = (0, 1, 2, 3, 4, 6)
PICTURE = Path(__file__).with_suffix(".png")


def main(run: str) -> None:
    """One test statement of each label, the first of those about a thing of a colour and a shape."""
    examples = [each for each in open_data("scenes").splits["test"] if each.facts["kind"] == "binding"]
    chosen = [next(each for each in examples if int(each.target) == label) for label in range(3)]  # type: ignore[arg-type]
    explained = Explainer(load_run(run))(chosen, steps=STEPS)
    PICTURE.write_bytes(as_png(explanation_grid(explained, steps=STEPS), dpi=110))
    print(PICTURE)


if __name__ == "__main__":
    main(*sys.argv[1:])
