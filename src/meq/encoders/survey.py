"""Which contents a data set holds, by fingerprint: what is to be encoded, and once each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from PIL import Image

from meq.data.content import Content, Picture, PictureFile, Regions, SoundFile, fingerprint_of
from meq.data.contract import DataSet, Example, Split
from meq.data.findings import DataError, Finding, OnBad
from meq.encoders.processes import Share
from meq.encoders.writing import broken

Keys = bytes | tuple[bytes, ...] | None
"""The fingerprint of one modality's content, or one per choice; None where the example lacks the modality."""
Surveyed = tuple[Keys, ...] | Finding
"""One example: the keys of each modality that is encoded, or what is wrong with it."""
Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Every example of a data set, looked at and not yet encoded."""

    data: DataSet
    names: tuple[str, ...]
    """The modalities that are encoded."""
    splits: dict[str, list[Surveyed]]

    def contents(self, modalities: Sequence[str]) -> dict[bytes, Callable[[], Content]]:
        """Each distinct content of these modalities, to be made when it is needed."""
        found: dict[bytes, Callable[[], Content]] = {}
        for split, rows in self.splits.items():
            for place, row in enumerate(rows):
                for name, keys in () if isinstance(row, Finding) else zip(self.names, row, strict=True):
                    for choice, key in enumerate(each_of(keys)):
                        if name in modalities and key not in found:
                            found[key] = _Later(self.data.splits[split], place, name, choice)
        return found


@dataclass(frozen=True, slots=True)
class _Later:
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
    look = _Look(tuple(names), on_bad)
    total, done = sum(len(share.of(range(len(split)))) for split in data.splits.values()), 0
    splits = {}
    for name, split in data.splits.items():
        mine: list[Surveyed] = []
        for place in share.of(range(len(split))):
            mine.append(look(split[place]))
            done += 1
            if progress and (done % 100 == 0 or done == total):
                progress("looking at the data", done, total)
        splits[name] = share.gather(mine)
    return Survey(data=data, names=look.names, splits=splits)


class _Look:
    """From an example to its keys; a file is read once, however many examples hold it."""

    def __init__(self, names: tuple[str, ...], on_bad: OnBad) -> None:
        self.names, self.on_bad = names, on_bad
        self.files: dict[PictureFile, str] = {}
        self.sounds: dict[SoundFile, bytes] = {}

    def __call__(self, example: Example) -> Surveyed:
        keys: list[Keys] = []
        for name in self.names:
            content = example.content.get(name)
            try:
                keys.append(None if content is None else self._keys(content))
            except DataError as error:
                finding = broken(example.content[name], str(error))
                if self.on_bad == "raise":
                    raise as_error(finding) from error
                return finding
        return tuple(keys)

    def _keys(self, content: Content) -> Keys:
        if isinstance(content, tuple):
            return tuple(fingerprint_of(choice) for choice in content)
        if isinstance(content, SoundFile):
            if content not in self.sounds:
                self.sounds[content] = fingerprint_of(content)
            return self.sounds[content]
        return fingerprint_of(self._known(content))

    def _known(self, content: Content) -> Content:
        if isinstance(content, PictureFile):
            return _ReadOnce(content, self.files)
        if isinstance(content, Regions) and isinstance(content.picture, PictureFile):
            return replace(content, picture=_ReadOnce(content.picture, self.files))
        return content


def each_of(keys: Keys) -> tuple[bytes, ...]:
    return () if keys is None else keys if isinstance(keys, tuple) else (keys,)


def as_error(finding: Finding) -> DataError:
    return DataError(f"{finding} (skip such rows with on_bad='skip', or --skip-bad)")


@dataclass(frozen=True, slots=True)
class _ReadOnce(Picture):
    """A picture file whose fingerprint is remembered."""

    file: PictureFile
    known: dict[PictureFile, str]

    def open(self) -> Image.Image:
        return self.file.open()

    def fingerprint(self) -> str:
        if self.file not in self.known:
            self.known[self.file] = self.file.fingerprint()
        return self.known[self.file]

    def __str__(self) -> str:
        return str(self.file)
