"""What is in a data set folder, what is missing and what is wrong, said on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meq.data.content import Content, MaskFile, Picture, PictureFile, Regions, Sound
from meq.data.contract import DataSet, Example, Rows
from meq.data.findings import DataError, Finding, Findings
from meq.data.request import DataRequest
from meq.errors import printable, shown

if TYPE_CHECKING:
    from torch import Tensor

PLACES = 3
"""How many places of each kind of problem are shown."""
FACT = 120
"""How many characters of each fact are shown."""
LABELS = 8
"""How many labels of each split are shown; a set of answers can have thousands."""
LABEL = 60
"""How many characters of each label are shown."""


@dataclass(frozen=True, kw_only=True)
class SplitCount:
    """What one split holds."""

    examples: int
    labels: Mapping[str, int]
    """Empty where targets are numbers."""
    unlabelled: int
    without: Mapping[str, int]
    """By modality: how many examples lack it."""
    scores: tuple[float, float] | None = None
    """The lowest and the highest, where targets are numbers."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One kind of thing that is wrong."""

    kind: str
    count: int
    places: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What `check` found; prints as a page."""

    name: str
    root: str | None
    modalities: Mapping[str, str]
    splits: Mapping[str, SplitCount]
    pictures: int
    """Distinct pictures that were looked at."""
    decoded: bool
    """Whether they were decoded whole, or only their heads read."""
    absent: tuple[str, ...]
    problems: tuple[Problem, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    sounds: int = 0
    """Distinct sounds that were looked at."""
    notes: tuple[str, ...] = ()
    """What was decided while reading that somebody may want otherwise."""

    @property
    def ok(self) -> bool:
        """Whether there is something to train on and nothing wrong with it."""
        return not self.problems and any(split.examples for split in self.splits.values())

    def __str__(self) -> str:
        return "\n".join(map(printable, _page(self)))


def check(name: str, root: Path | str | None = None, *, decode: bool = True, **options: Any) -> Inspection:
    """Walk a data set that is known by name; `options` are the data set's own."""
    folder = None if root is None else Path(root)
    return inspect_data(DataRequest(data=name, root=folder, options=options), decode=decode)


def inspect_data(request: DataRequest, *, decode: bool = True) -> Inspection:
    """Walk a data set and say what is there, missing and wrong.

    One example at a time: each distinct picture or sound is decoded once (or its head read, without `decode`) and let
    go. A folder that cannot be read at all is a DataError.
    """
    findings = Findings("skip", keep_each=PLACES)
    data = request.open(findings)
    walk = _Walk(data=data, findings=findings, decode=decode)
    splits = {split: walk.count(split) for split in data.splits}
    return Inspection(
        name=request.data,
        root=None if request.root is None else str(request.root),
        modalities={
            each: modality.kind if modality.width is None else f"{modality.kind}, {modality.width} wide"
            for each, modality in data.modalities.items()
        },
        splits=splits,
        pictures=len(walk.seen["picture"]),
        decoded=decode,
        absent=tuple(findings.absent),
        problems=tuple(
            Problem(kind=kind, count=count, places=tuple(each for each in findings if each.kind == kind))
            for kind, count in findings.counts.most_common()
        ),
        facts=data.facts,
        sounds=len(walk.seen["sound"]),
        notes=tuple(each for each in findings.notes if each not in findings.absent),
    )


@dataclass(kw_only=True)
class _Walk:
    """One pass over the examples; of those that went by, only names are kept."""

    data: DataSet
    findings: Findings
    decode: bool
    seen: dict[str, set[str]] = field(default_factory=lambda: {"picture": set(), "sound": set(), "mask": set()})
    """Names of the files that were opened, each once, by what they are."""
    broken: set[str] = field(default_factory=set)

    def count(self, split: str) -> SplitCount:
        labels: Counter[str] = Counter()
        without: Counter[str] = Counter()
        scores: tuple[float, float] | None = None
        ids: set[str] = set()
        unlabelled = 0
        examples = self.data.splits[split]
        for example in examples.plain() if isinstance(examples, Rows) else examples:  # without torch where possible
            place = f"{split}, example {example.id!r}"
            if example.id in ids:
                self.findings.report("duplicate id", "the id was used before", file=place)
            ids.add(example.id)
            without.update(name for name in self.data.modalities if name not in example.content)
            self._look(example, place)
            if example.target is None:
                unlabelled += 1
            elif self.data.head == "score":
                score = float(example.target)
                scores = (min(score, scores[0]), max(score, scores[1])) if scores else (score, score)
            elif self.data.head == "tokens":  # each token has an answer of its own, or -1 for none
                labels.update(self._class(int(each), place) for each in example.target if each != -1)
            else:
                labels[self._label(example.target, place)] += 1
        own = self.data.labels if len(self.data.labels) <= LABELS else ()
        return SplitCount(
            examples=len(examples),
            # in the set's own order where all can be shown, otherwise the most frequent first
            labels={label: labels[label] for label in own if label in labels} | dict(labels.most_common()),
            unlabelled=unlabelled,
            without=dict(without),
            scores=scores,
        )

    def _label(self, target: Tensor, place: str) -> str:
        """The label's name; of soft labels, the strongest one's."""
        if self.data.head == "labels":
            return self.data.labels[int(target.argmax())] if bool((target > 0).any()) else "(none of the labels)"
        return f"choice {int(target)}" if self.data.head == "choices" else self._class(int(target), place)

    def _class(self, number: int, place: str) -> str:
        if not 0 <= number < len(self.data.labels):
            self.findings.report("wrong label", f"its label is {number}, of {len(self.data.labels)}", file=place)
            return f"({number})"
        return self.data.labels[number]

    def _look(self, example: Example, place: str) -> None:
        for name, part in ((name, part) for name, content in example.content.items() for part in _parts(content)):
            if isinstance(part, str):
                if not part.strip():
                    self.findings.report("empty text", f"{name!r} is empty", file=place)
            elif isinstance(part, Picture | Sound):
                self._open("picture" if isinstance(part, Picture) else "sound", part)
            elif bad := int((~(np.isfinite(part) if isinstance(part, np.ndarray) else part.isfinite())).sum()):
                self.findings.report("not finite", f"{name!r} holds {bad} values that are not finite", file=place)
        for fact in example.facts.values():
            # a mask is measured against its picture
            if self.decode and isinstance(fact, MaskFile) and str(fact.picture) not in self.broken:
                self._open("mask", fact)

    def _open(self, what: str, file: Picture | MaskFile | Sound) -> None:
        if str(file) in self.seen[what]:
            return
        self.seen[what].add(str(file))
        try:
            if self.decode:
                file.open()
            elif isinstance(file, PictureFile):
                file.size()
            elif isinstance(file, Sound):
                file.seconds()
        except DataError as error:
            self.broken.add(str(file))
            self.findings.report(f"broken {what}", str(error).removeprefix(f"{file}: "), file=str(file))


def _parts(content: Content) -> Iterator[Tensor | str | Picture | Sound]:
    if isinstance(content, tuple):
        for choice in content:
            yield from _parts(choice)
    else:
        yield content.picture if isinstance(content, Regions) else content


def _page(found: Inspection) -> Iterator[str]:
    yield found.name if found.root is None else f"{found.name} in {found.root}"
    yield "  " + "; ".join(f"{name}: {kind}" for name, kind in found.modalities.items())
    width = max((len(name) for name in found.splits), default=0)
    for name, split in found.splits.items():
        yield f"  {name:<{width}}  {split.examples:>9,} examples  {_labels(split)}".rstrip()
        for modality, count in split.without.items():
            yield f"  {'':<{width}}  {count:>9,} of them without {modality!r}"
    how = "decoded" if found.decoded else "heads read, not decoded"
    if found.pictures:
        yield f"  {found.pictures:,} different pictures ({how})"
    if found.sounds:
        yield f"  {found.sounds:,} different sounds ({how})"
    yield from _facts(found.facts)
    for each in found.absent:
        yield f"  absent: {each}"
    for each in found.notes:
        yield f"  note: {each}"
    for problem in found.problems:
        yield f"  {problem.kind}: {problem.count:,}"
        yield from (f"      {place}" for place in problem.places)
        if problem.count > len(problem.places):
            yield f"      and {problem.count - len(problem.places):,} more"
    if found.problems:
        count = sum(problem.count for problem in found.problems)
        problems = "1 problem" if count == 1 else f"{count:,} problems"
        yield f"{problems}; rows with problems are left out with --skip-bad."
    elif not found.ok:
        yield "There is nothing in it."
    elif all(kind.startswith("features") for kind in found.modalities.values()):
        yield "Ready to train: nothing has to be encoded."
    else:
        yield "Ready to encode."


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    """Choices on one line, what needs more words on lines of their own."""
    short = {name: str(value) for name, value in facts.items() if isinstance(value, str | int | float)}
    short = {name: value for name, value in short.items() if " " not in value}
    if short:
        yield "  read with " + ", ".join(f"{name}={value}" for name, value in short.items())
    for name, value in facts.items():
        if name not in short and value not in ({}, [], (), None):
            text = (
                ", ".join(f"{key}: {each}" for key, each in value.items()) if isinstance(value, Mapping) else str(value)
            )
            yield f"  {name}: {text if len(text) <= FACT else text[: FACT - 4] + ' ...'}"


def _labels(split: SplitCount) -> str:
    told = [f"{shown(label, LABEL)}: {count:,}" for label, count in list(split.labels.items())[:LABELS]]
    if len(split.labels) > LABELS:
        told.append(f"and {len(split.labels) - LABELS:,} labels more")
    if split.scores is not None:
        told.append(f"from {split.scores[0]:g} to {split.scores[1]:g}")
    if split.unlabelled:
        told.append(f"unlabelled: {split.unlabelled:,}")
    return ", ".join(told)
