"""`meq.audit`: is a model iterating at all? A trained run on its own data, or any model on batches of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from meq.analysis.audit import audit_model, check_auditable
from meq.analysis.audit_findings import Audit
from meq.analysis.walk import Subject
from meq.data.contract import DataSet, Example
from meq.devices import device_of
from meq.options import checked_options
from meq.runs.load import TrainedRun, load_run
from meq.runs.own_data import ReadOptions, chosen_split, run_data
from meq.studies.study import StudyError
from meq.training.predictions import batched, labelled

DIFFICULTIES = ("token_depths", "depth", "hops")
"""Facts of examples that say how hard they are, the first that all have; the first is a number per token."""


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Which examples are audited, and how many."""

    split: str | None = None
    """By default dev where it is labelled, or else test, or else the first that is: what one decides by an audit is
    then not decided on test."""
    samples: int = 256
    """Spread over the split; each takes some sixty times K steps."""
    seed: int = 0
    """Of random starts and of intervals."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise StudyError(f"at least one sample is needed, got {self.samples}")


@checked_options
def audit(
    subject: TrainedRun | str | Path | Subject,
    batches: Iterable[Any] | Any | None = None,
    *,
    split: str | None = None,
    samples: int = 256,
    seed: int = 0,
) -> Audit:
    """Is it iterating at all, and does it keep what it finds? Prints itself as one page with a verdict.

    `subject` is a trained run, its folder or its name on the Hub, which is audited on its own data; or a model with
    labelled batches that have `features`, `masks`, `target` and, where that is known, `difficulty`.

    >>> from collections import namedtuple
    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2, steps=2).eval()
    >>> Labelled = namedtuple("Labelled", ["features", "masks", "target"])
    >>> features = {"image": torch.randn(4, 5, 8), "text": torch.randn(4, 4, 6)}
    >>> found = meq.audit(model, [Labelled(features, {}, torch.tensor([0, 1, 2, 0]))])
    >>> page = str(found)  # five questions, and found.verdict in words
    """
    if isinstance(subject, str | Path):
        subject = load_run(subject)
    if isinstance(subject, TrainedRun):
        if batches is not None:
            raise TypeError("a run is audited on its own data: give its model, run.model, with batches of your own")
        return audit_run(subject, options=AuditOptions(split=split, samples=samples, seed=seed))
    if batches is None:
        raise TypeError(
            f"to audit a {type(subject).__name__} give labelled batches after it, or give a trained run instead, which "
            "knows its data"
        )
    if split is not None:
        raise TypeError("split belongs to a trained run: batches are what they are")
    return audit_model(subject, [batches] if hasattr(batches, "features") else batches, seed=seed)


def audit_run(
    run: TrainedRun,
    data: str | None = None,
    *,
    root: Path | None = None,
    options: AuditOptions = AuditOptions(),  # noqa: B008
    reading: ReadOptions = ReadOptions(),  # noqa: B008
) -> Audit:
    """Audit the run on a labelled split of its own data, or of other data."""
    check_auditable(run.model)  # said before anything that takes long
    made = run_data(run, data, root=root, reading=reading).data
    made = chosen_split(made, options.split or _first_labelled(made))
    ((name, split),) = made.splits.items()
    if not labelled(split):
        raise StudyError(f"{made.name}: {name} has no labels, and an audit is of right and wrong answers")
    count = min(options.samples, len(split))
    rows = torch.linspace(0, len(split) - 1, count).round().long().tolist()  # neighbours often share a picture
    batches = _batches([split[row] for row in rows], made, run, reading)
    model: Any = run.model
    return audit_model(model, batches, seed=options.seed, of=f"{made.name}, split {name}")


def _first_labelled(data: DataSet) -> str:
    names = [name for name in ("dev", "test", *data.splits) if name in data.splits and labelled(data.splits[name])]
    if not names:
        raise StudyError(f"{data.name}: there are no labels in {', '.join(data.splits)}, and an audit needs some")
    return names[0]


def _batches(
    examples: Sequence[Example], data: DataSet, run: TrainedRun, reading: ReadOptions
) -> Iterator[SimpleNamespace]:
    usable = DIFFICULTIES if data.answering else DIFFICULTIES[1:]  # where tokens do not answer, theirs says nothing
    fact = next((name for name in usable if all(name in example.facts for example in examples)), None)
    device, done = device_of(run.model), 0
    for part in batched(examples, run.batch_size):
        made = data.collate(part).to(device)
        difficulty = None if fact is None else _difficulty(part, data, fact)
        yield SimpleNamespace(features=made.features, masks=made.masks, target=made.target, difficulty=difficulty)
        done += len(part)
        if reading.progress is not None:
            reading.progress("auditing", done, len(examples))


def _difficulty(examples: Sequence[Example], data: DataSet, fact: str) -> Tensor:
    """A number per example, or per token in the places that their answers have."""
    if fact != DIFFICULTIES[0]:
        return torch.tensor([_number(example.id, example.facts, fact) for example in examples])
    depths = [torch.as_tensor(_in_a_row(example.facts[fact], data.answering)).long() for example in examples]
    placed = [replace(example, target=depth) for example, depth in zip(examples, depths, strict=True)]
    return data.collate(placed).target


def _in_a_row(depths: Any, answering: Sequence[str]) -> Any:
    """Depths by modality, as generated sets state them, one modality after the other; others as they are."""
    return [each for name in answering for each in depths[name]] if isinstance(depths, Mapping) else depths


def _number(name: str, facts: Mapping[str, Any], fact: str) -> float:
    try:
        return float(facts[fact])
    except (TypeError, ValueError) as error:
        raise StudyError(f"example {name!r}: its {fact!r} is {facts[fact]!r:.40}, not a number") from error
