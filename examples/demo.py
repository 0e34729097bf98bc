"""What `make demo` runs: train a mutual equilibrium on generated statements, then watch its answer form step by step.

The pictures are grids of coloured shapes, the texts statements such as "there is a red circle"; the answer is true or
false. Nothing is downloaded. A few minutes on two cores.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import meq
from meq.data import Batch, DataSet, collate
from meq.data.statements import statements
from meq.objectives import JacobianRange, Objective, ResidualCorrection
from meq.training import TrainConfig, fit, seed_everything

DEEPEST = 16
"""Twice the read depth: what happens when the iteration goes on longer than it was trained for?"""


def main() -> None:
    console = Console()
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="meq-demo-")) / "run"
    data = statements()
    seed_everything(0)
    model = meq.MutualEquilibrium(widths=data.widths, classes=2, dim=64, heads=4, steps=8)
    objective = Objective(penalties=(JacobianRange(weight=0.5), ResidualCorrection(weight=0.3)))
    console.print(
        f"Training a mutual equilibrium of {model.count_parameters():,} parameters on {len(data.splits['train']):,} "
        f"statements about pictures; true or false, so chance is one half."
    )
    record = fit(model, data, objective, folder, TrainConfig(epochs=12, batch_size=64, learning_rate=1e-3))
    model = meq.MutualEquilibrium.from_pretrained(folder / "model").eval()
    batch = collate(list(data.splits["test"]), data.widths)
    console.print(accuracy_along_the_iteration(model, data, batch))
    console.print(health(record))
    console.print(
        f"Test accuracy at the read depth: {record['test']['accuracy']:.1%} (weights of the best epoch on dev; one "
        f"seed, so no comparison is made).\nModel: {folder / 'model'}\nRecord: {folder / 'record.json'}"
    )


@torch.no_grad()
def accuracy_along_the_iteration(model: meq.MutualEquilibrium, data: DataSet, batch: Batch) -> Table:
    """The same trained model, its answer read at every step k."""
    context = model(batch.features, batch.masks).solution.inputs
    options = {"solver": model.damped(), "steps": DEEPEST + 1, "tol": 0.0, "masks": batch.masks}
    solution = meq.solve(model.operator, context, trajectory="all", **options)
    binding = torch.tensor([(row // 2) % 2 == 0 for row in range(len(batch))])
    table = Table(title="Read at step k of the iteration, on the test split")
    for column in ("k", "existence: a red thing", "binding: a red circle", "residual, image", "residual, text"):
        table.add_column(column, justify="right")
    for k, state in list((solution.trajectory or {}).items())[:-1]:
        right = model.read(state, batch.masks).argmax(1) == batch.target
        scores = [f"{right[which].double().mean().item():.1%}" for which in (~binding, binding)]
        rows = [solution.residuals[name][k].median().item() for name in data.widths]
        table.add_row(f"K = {k}" if k == model.steps else str(k), *scores, *(f"{value:.1e}" for value in rows))
    return table


def health(record: dict) -> Table:
    """The last epoch's measurements: is the coupling alive?"""
    vitals = record["vitals"][-1]
    table = Table(title=f"Health after {len(record['curves'])} epochs: {len(record['alarms'])} alarms")
    table.add_column("measurement")
    table.add_column("value", justify="right")
    rows = {
        "|J|, root mean square singular value (1 is the identity)": vitals["jacobian_norm"],
        "spectral radius of the undamped map, largest of a few samples": vitals["radius"],
        "residual at the read depth": vitals["residual"],
        **{f"mean gate, {name}": value for name, value in vitals["gate"].items()},
        **{f"cross-modal over self sensitivity, {name}": value for name, value in vitals["cross_self"].items()},
    }
    for name, value in rows.items():
        table.add_row(name, f"{value:.3f}")
    return table


if __name__ == "__main__":
    main()
