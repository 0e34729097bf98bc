"""What there is to encode: every distinct content of a data set, by fingerprint, shared out among processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from meq.data.content import Content, Picture, Regions, SoundFile, fingerprint_of
from meq.data.contract import DataSet, Example, Split
from meq.data.findings import DataError, Finding, OnBad

Item = TypeVar("Item")
Keys = bytes | tuple[bytes, ...] | None
"""The fingerprint of one modality's content, or one per choice; None where the example lacks the modality."""
Surveyed = tuple[Keys, ...] | Finding
"""One example: the keys of each modality that is encoded, or what is wrong with it."""
Contents = dict[bytes, Callable[[], Content]]
"""Distinct contents by key, each made when it is needed."""
Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Every example of a data set, looked at and not yet encoded."""

    data: DataSet
    names: tuple[str, ...]
    """The modalities that are encoded."""
    splits: dict[str, list[Surveyed]]

    def contents(self, modalities: Sequence[str]) -> Contents:
        """Each distinct content of these modalities."""
        found: Contents = {}
        for split, rows in self.splits.items():
            for place, row in enumerate(rows):
                for name, keys in () if isinstance(row, Finding) else zip(self.names, row, strict=True):
                    for choice, key in enumerate(each_of(keys)):
                        if name in modalities and key not in found:
                            found[key] = _LazyContent(self.data.splits[split], place, name, choice)
        return found


@dataclass(frozen=True, slots=True)
class _LazyContent:
    """Where a content is to be had; small, since there is one for every distinct content."""

    split: Split
    place: int
    name: str
    choice: int

    def __call__(self) -> Content:
        content = self.split[self.place].content[self.name]
        return content[self.choice] if isinstance(content, tuple) else content


def take_survey(
    data: DataSet, names: Sequence[str], *, on_bad: OnBad, share: Share, progress: Progress | None
) -> Survey:
    """Look at every example; several processes share them out and tell each other what they saw."""
    known: dict[Picture | SoundFile, str] = {}
    total, done = sum(len(share.of(range(len(split)))) for split in data.splits.values()), 0
    splits = {}
    for name, split in data.splits.items():
        mine: list[Surveyed] = []
        for place in share.of(range(len(split))):
            mine.append(_keys(split[place], names, known, on_bad))
            done += 1
            if progress and (done % 100 == 0 or done == total):
                progress("looking at the data", done, total)
        splits[name] = share.gather(mine)
    return Survey(data=data, names=tuple(names), splits=splits)


def _keys(example: Example, names: Sequence[str], known: dict[Picture | SoundFile, str], on_bad: OnBad) -> Surveyed:
    """The fingerprints of what is to be encoded of an example; a file is read once, however many examples hold it."""
    keys: list[Keys] = []
    for name in names:
        if name not in example.content:
            keys.append(None)
            continue
        content = example.content[name]
        try:
            if isinstance(content, tuple):
                keys.append(tuple(fingerprint_of(choice, known) for choice in content))
            else:
                keys.append(fingerprint_of(content, known))
        except DataError as error:
            finding = broken(content, str(error))
            if on_bad == "raise":
                raise as_error(finding) from error
            return finding
    return tuple(keys)


def each_of(keys: Any) -> tuple[Any, ...]:
    """The keys, or the places, of one modality of an example: none, one, or one per choice."""
    return () if keys is None else keys if isinstance(keys, tuple) else (keys,)


# -- contents that cannot be encoded -----------------------------------------------------------------------------------


def broken(content: Content, message: str) -> Finding:
    """What is wrong with a content that could not be read."""
    name = name_of(content)
    kind = "broken picture" if isinstance(content, Picture | Regions) else "not encodable"
    if isinstance(content, SoundFile):
        kind = "broken sound"
    return Finding(kind=kind, message=message.removeprefix(f"{name}: "), file=name)


def name_of(content: Content) -> str:
    if isinstance(content, Regions):
        return str(content.picture)
    if isinstance(content, str):
        return f"the text {content[:60]!r}{'...' if len(content) > 60 else ''}"
    return str(content) if isinstance(content, Picture | SoundFile) else type(content).__name__


def as_error(finding: Finding) -> DataError:
    return DataError(f"{finding} (skip such rows with on_bad='skip', or --skip-bad)")


# -- several processes of one launch -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Share:
    """This process among those that torchrun or accelerate launch started; alone, it is one of one."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Every `world`-th item."""
        return items[self.rank :: self.world]

    def gather(self, mine: Sequence[Item]) -> list[Item]:
        """What each process made of its share, one for one, back in the order that `of` took them from."""
        shares = self.collect(mine)
        merged: list[Any] = [None] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            merged[rank :: self.world] = share
        return merged

    def collect(self, mine: Sequence[Item]) -> list[list[Item]]:
        """What every process has, however much, by process."""
        if self.world == 1:
            return [list(mine)]
        from accelerate.utils import gather_object

        return gather_object([list(mine)])

    def wait(self) -> None:
        """Until every process has come this far."""
        if self.world > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()


def this_process() -> Share:
    """Its share, by what the launcher says; Accelerate is loaded only where there are several processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Share()
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.accelerator.is_available())  # as training does, which may follow
    return Share(rank=state.process_index, world=state.num_processes)
