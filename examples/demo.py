"""What `make demo` runs: train a mutual equilibrium on generated pictures and statements, and watch its answer form.

The pictures show coloured shapes, some of them camouflaged, some parts of the picture covered; the statements are true
of them, false, or open. Nothing is downloaded. A few minutes on two cores.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import meq
from meq.analysis import follow
from meq.data import Batch, DataSet, Example, collate, open_data
from meq.encoders import default_encoders, encode
from meq.training import TrainConfig, fit, seed_everything
from meq.viz.listing import save_sheet

STEPS = (0, 1, 2, 3, 4, 5, 6, 9, 12)
"""Up to twice the read depth: what happens when the iteration goes on longer than it was trained for?"""


def main() -> None:
    console = Console()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="meq-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    scenes = open_data("scenes")
    save_sheet(scenes, list(scenes.splits["train"][:12]), folder / "scenes.png")
    console.print(f"The data, drawn: {folder / 'scenes.png'}")
    data = encode(scenes, default_encoders(scenes))
    seed_everything(0)
    model = meq.MutualEquilibrium(widths=data.widths, classes=3, dim=64, heads=4, steps=6, hidden=128, head_width=128)
    objective = meq.Objective(penalties=(meq.JacobianRange(weight=0.5), meq.ResidualCorrection(weight=0.3)))
    console.print(
        f"Training a mutual equilibrium of {model.count_parameters():,} parameters on {len(data.splits['train']):,} "
        "statements about pictures; there are three answers, so chance is one third."
    )
    record = fit(model, data, objective, folder / "run", TrainConfig(epochs=12, batch_size=64, learning_rate=1e-3))
    model = meq.MutualEquilibrium.from_pretrained(folder / "run" / "model").eval()
    console.print(answers_along_the_iteration(model, data))
    console.print(health(model, data), markup=False, highlight=False)
    console.print(
        f"\nTest accuracy at the read depth: {record.metrics['test']['accuracy']:.1%} (weights of the best epoch on "
        f"dev; one seed, so no comparison is made).\nPicture: {folder / 'scenes.png'}\n"
        f"Model: {folder / 'run' / 'model'}\nRecord: {folder / 'run' / 'record.json'}"
    )


def answers_along_the_iteration(model: meq.MutualEquilibrium, data: DataSet) -> Table:
    """The same trained model, its answer read at every step k."""
    kinds = list(data.facts["kinds"])
    followed = {kind: follow(model, batches(data, kind), steps=STEPS[:-1], horizon=STEPS[-1]) for kind in kinds}
    table = Table(title="Read at step k of the iteration, on the test split")
    for column in ("k", *kinds, *(f"residual, {name}" for name in data.widths)):
        table.add_column(column, justify="right")
    for k in STEPS:
        cells = []
        for each in followed.values():
            assert each.correct is not None
            cells.append(f"{each.correct[each.at(k)].double().mean():.1%}")
        last = followed[kinds[-1]]
        residuals = [f"{last.residuals[name][last.at(k)].median():.1e}" for name in data.widths]
        table.add_row(f"K = {k}" if k == model.steps else str(k), *cells, *residuals)
    return table


def health(model: meq.MutualEquilibrium, data: DataSet) -> str:
    """What meq.diagnose has to say of it."""
    batch = collate(list(data.splits["test"][:32]), data.widths)
    with torch.no_grad():
        out = model(batch.features, batch.masks)
    return str(meq.diagnose(model, out))


def batches(data: DataSet, kind: str) -> Iterator[Batch]:
    """The test examples of one kind of statement, a hundred at a time."""
    chosen: list[Example] = [example for example in data.splits["test"] if example.facts["kind"] == kind]
    for start in track(range(0, len(chosen), 100), description=f"reading {kind} at every step"):
        yield collate(chosen[start : start + 100], data.widths)


if __name__ == "__main__":
    main()
