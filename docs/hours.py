"""The table of hours in docs/reproduce.md, computed from FLOPs: python docs/hours.py

Nothing is measured here. An update is taken for three forward passes, and every penalty for the operator calls that it
adds; how fast a GPU is follows from the paper's own times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from meq.data.contract import DataSet, Example, features
from meq.data.metrics import ACCURACY
from meq.models.match import count_flops
from meq.studies import make_study
from meq.studies.build import PreparedData, sized_options
from meq.studies.local import memory_of_a_run
from meq.studies.one_run import same_arm
from meq.studies.paper import COSTS
from meq.studies.settings import EQUILIBRIUM
from meq.studies.study import Study
from meq.studies.whole_paper import PLAN
from meq.tables import Table, as_markdown
from meq.training.arms import make_model

PAGE = Path(__file__).with_name("reproduce.md")
BEGIN, END = "<!-- hours: made by docs/hours.py -->", "<!-- end of hours -->"
TRAINING = 3
"""Forward passes that an update takes: its own, and twice as much for the gradients."""
PROBE = 6
"""Operator calls that a probe of the Jacobian takes: a product with it, which is differentiated again."""
MS, GFLOPS, _ = COSTS["concat"]
SPEED = GFLOPS * 1e9 / (MS * 1e-3)
"""FLOPs per second of an RTX 3090, by the paper's own time of its cheapest arm."""
WIDTH = 768
BYTES = 2
"""Of a feature in the store, in float16."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """What a benchmark brings, in round numbers."""

    train: int
    pictures: int
    texts: int
    tokens: dict[str, int]
    """Of a typical example."""
    labels: int
    head: str = "classes"
    choices: int = 1


SIZES = {
    "snli-ve": Size(train=533_000, pictures=31_800, texts=550_000, tokens={"image": 50, "text": 16}, labels=3),
    "hateful-memes": Size(train=8_500, pictures=10_000, texts=10_000, tokens={"image": 50, "text": 24}, labels=2),
    "vqa-v2": Size(
        train=193_000, pictures=40_500, texts=214_000, tokens={"image": 50, "text": 10}, labels=3129, head="labels"
    ),
    "vcr": Size(
        train=212_000,
        pictures=110_000,
        texts=1_000_000,
        tokens={"image": 62, "text": 40},
        labels=4,
        head="choices",
        choices=4,
    ),
    "mosei": Size(train=16_000, pictures=0, texts=23_000, tokens={"image": 1, "audio": 1, "text": 25}, labels=7),
    "cod10k": Size(train=6_000, pictures=10_000, texts=10_000, tokens={"image": 50, "text": 12}, labels=2),
}


def stand_in(name: str) -> DataSet:
    """A set of that shape: FLOPs depend on nothing else."""
    size = SIZES[name]
    content = {modality: torch.zeros(count, WIDTH) for modality, count in size.tokens.items()}
    target = torch.zeros(size.labels) if size.head == "labels" else torch.tensor(0)
    rows = [Example(id=str(row), content=content, target=target) for row in range(4)]
    labels = tuple(map(str, range(size.labels)))
    kinds = {modality: features(WIDTH) for modality in size.tokens}
    head = "classes" if size.head == "choices" else size.head
    return DataSet(
        name=name, splits={"train": rows, "dev": rows}, modalities=kinds, labels=labels, head=head, metric=ACCURACY
    )


def training_flops(study: Study, arm: str, data: DataSet) -> float:
    """Of one run of an arm."""
    size, config = SIZES[data.name], study.arm(arm)
    batch = {modality: torch.empty(1, count, WIDTH) for modality, count in size.tokens.items()}

    def forward(steps: int | None) -> int:
        options = {**sized_options(study, config, data), **({} if steps is None else {"steps": steps})}
        tolerant = {**options, "tol": 0.0} if "steps" in options else options
        if tolerant.get("order") == "random":
            tolerant["order"] = None
        return count_flops(lambda _: make_model(config.model, data, tolerant), 0, batch)

    iterates = "steps" in config.options
    whole, extra = forward(None), 0.0
    if iterates and config.penalties:
        step = forward(2) - forward(1)
        probes = sum(int(options.get("probes", 1)) for name, options in config.penalties.items() if "jacobian" in name)
        extra = step * (TRAINING + PROBE * probes)
    return (TRAINING * whole + extra) * size.train * size.choices * study.config(arm, study.seeds[0]).epochs


def runs_of(name: str) -> Iterator[tuple[Study, list[str]]]:
    """The studies of a data set, each with the arms that no study before it has trained."""
    before: list[Study] = []
    for title in PLAN[name]:
        study = make_study(title, name)
        new = [
            arm.name
            for arm in study.arms
            if not any(same_arm(other, study, arm.name, study.seeds[0]) for other in before if other.data == study.data)
        ]
        before.append(study)
        yield study, new


def memory(study: Study, data: DataSet) -> float:
    """Bytes that a run of the equilibrium holds, as `--on local` estimates it from one example."""
    arm = next((each for each in study.arms if each.name == EQUILIBRIUM), study.arms[0])
    whole = memory_of_a_run(replace(study, arms=(arm,), reference=arm.name, groups={}), PreparedData(data=data))
    alone = memory_of_a_run(
        replace(study, arms=(arm,), reference=arm.name, groups={}, train=replace(study.train, batch_size=1)),
        PreparedData(data=data),
    )
    return whole + (SIZES[data.name].choices - 1) * (whole - alone)  # every choice is a sample of its own


def hours_table(names: tuple[str, ...] = tuple(PLAN)) -> Table:
    rows = []
    for name in names:
        size, data = SIZES[name], stand_in(name)
        store = (size.pictures * size.tokens["image"] + size.texts * size.tokens["text"]) * WIDTH * BYTES
        held = 0.0
        for study, arms in runs_of(name):
            held = held or memory(study, data)
            flops = sum(training_flops(study, arm, data) for arm in arms) * len(study.seeds)
            rows.append(
                {
                    "data": name,
                    "study": study.name.removesuffix(f"-{name}"),
                    "runs": len(arms) * len(study.seeds),
                    "exaflops": flops / 1e18,
                    "hours": flops / SPEED / 3600,
                    "store": store / 1e9,
                    "memory": held / 1e9,
                }
            )
    total = sum(row["hours"] for row in rows)
    return Table.of(
        "hours: computed, not measured",
        rows,
        titles={
            "data": "data set",
            "exaflops": "EFLOPs",
            "hours": "hours",
            "store": "GB of features",
            "memory": "GB of memory",
        },
        digits={"exaflops": 2, "hours": 1, "store": 1, "memory": 1},
        notes=(
            f"All in all {total:,.0f} hours of one GPU that computes {SPEED / 1e12:.1f} TFLOPs per second, which is "
            "what an RTX 3090 does by the time that the paper states for its cheapest arm. Runs that an earlier study "
            "of the same data set has made are not counted again. An update counts as three forward passes, a penalty "
            "as the operator calls that it adds; evaluation, measures and encoding, once for every picture and text, "
            "are not counted. Memory: of a run of the equilibrium, estimated from one example's forward and backward "
            "pass. Features are kept on disk, the pictures themselves besides.",
        ),
    )


def with_hours(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{as_markdown(hours_table())}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_hours(PAGE.read_text()))
    print(PAGE)
