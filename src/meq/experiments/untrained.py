"""The studies that train nothing: what the iteration costs, and the paper's descriptive tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from meq.core.options import nearest
from meq.experiments.cost.study import cost_tables, run_cost
from meq.experiments.descriptions import datasets_table, encoders_table, hyperparameters_table
from meq.experiments.render import FORMATS, Table, as_text
from meq.experiments.study import TABLES, StudyError
from meq.files import alone, remove, write_bytes

COST = "cost"
DESCRIPTIONS: Mapping[str, tuple[str, Callable[[], Table]]] = {
    "datasets": ("Which data sets there are, with their sizes, beside the paper's.", datasets_table),
    "hyperparameters": ("What each benchmark is trained with, from the settings that train it.", hyperparameters_table),
    "encoders": ("Which encoder reads what.", encoders_table),
}
UNTRAINED: Mapping[str, str] = {
    COST: "What does an iteration cost, in time, FLOPs and memory, beside single-pass arms of the same size?",
    **{name: text for name, (text, _) in DESCRIPTIONS.items()},
}


def run_untrained(name: str, folder: Path | None = None, *, quick: bool = False, device: str | None = None) -> str:
    """Measure or describe, and return the tables as text; they are written to the folder in every form."""
    if name == COST:
        folder = folder or Path("studies") / COST
        with _held(folder):
            report = run_cost(folder, quick=quick, device=device)
        return "\n".join(as_text(table) for table in cost_tables(report, paper=not quick).values())
    if name not in DESCRIPTIONS:
        raise StudyError(f"there is no table {name!r}: {nearest(name, UNTRAINED)}")
    if folder is None:
        return as_text(DESCRIPTIONS[name][1]())
    with _held(folder):
        table = DESCRIPTIONS[name][1]()
        for ending, render in FORMATS.items():
            write_bytes(folder / f"{name}.{ending}", render(table).encode())
    return as_text(table)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """The folder, made before anything is measured, for one process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder, f"another process is at work in {folder}: wait until it has finished, or choose another folder"):
        remove([*folder.glob(".*.writing"), *folder.glob(f"{TABLES}/.*.writing")])
        yield
