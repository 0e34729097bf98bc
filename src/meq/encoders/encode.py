"""From a data set of pictures and texts to one of features, kept in memory or in a feature store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meq.core.options import checked_options, nearest
from meq.data.contract import DataSet, Rows, Split, features
from meq.data.findings import DataError, Finding, Findings, OnBad
from meq.encoders.contract import Encoder
from meq.encoders.processes import Share, this_process
from meq.encoders.reading import EncodedRow, ExampleMaker, Memory, Source, each_place, places_of
from meq.encoders.shards import DTYPES, Identity, StoreError
from meq.encoders.store import Features, FeatureStore
from meq.encoders.survey import Progress, Survey, as_error, each_of, take_survey
from meq.encoders.writing import ShardWriter, fill, filling, mend
from meq.files import free_bytes, in_bytes


@checked_options
def encode(
    data: DataSet,
    encoders: Mapping[str, Encoder],
    *,
    store: FeatureStore | Path | str | None = None,
    on_bad: OnBad = "raise",
    progress: Progress | None = None,
) -> DataSet:
    """The same data set with features instead of pictures and texts, one encoder per modality that needs one.

    Each distinct content is encoded once. With a `store` its features are kept there, what is there already is not
    encoded again, and examples are read from it when they are asked for; without one they stay in memory. Processes
    of one launch share the work. A picture that cannot be read is an error, or, with on_bad="skip", the examples that
    show it are left out and counted in the facts.

    `example.facts["tokens"]()` gives the tokens of each modality with their places in the original.
    """
    return encode_and_count(data, encoders, store=store, on_bad=on_bad, progress=progress).data


@dataclass(frozen=True, kw_only=True)
class Count:
    """What encoding one modality came to."""

    encoder: str
    distinct: int
    new: int
    """Those that were not in the store; shared by the modalities of one encoder."""
    truncated: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """The data set, and what was done for it."""

    data: DataSet
    counts: Mapping[str, Count]
    left_out: Mapping[str, int]
    """By split: examples that could not be encoded."""
    findings: Findings
    mended: Sequence[str]
    """What was wrong with the store, and has been encoded again."""


def encode_and_count(
    data: DataSet,
    encoders: Mapping[str, Encoder],
    *,
    store: FeatureStore | Path | str | None = None,
    on_bad: OnBad = "raise",
    progress: Progress | None = None,
) -> Encoded:
    """`encode`, with an account of it."""
    findings = Findings(on_bad)
    _check_encoders(data, encoders)
    where = None if store is None else FeatureStore.at(store)
    share = Share() if where is None else this_process()
    survey = take_survey(data, tuple(encoders), on_bad=on_bad, share=share, progress=progress)
    filling = _Filling(survey, where, share, findings, progress)
    for identity, names in _by_identity(encoders, "float32" if where is None else where.dtype).items():
        filling.run(identity, names, encoders[names[0]])
    rows, left_out = _rows(survey, filling, findings)
    if left_out and not any(rows.values()):
        message = f"{data.name}: nothing is left of its {sum(left_out.values()):,} examples, none could be encoded"
        raise DataError(message, *findings.first())
    counts = {name: _count(name, rows, filling) for name in encoders}
    return Encoded(
        data=_encoded(data, rows, filling, counts, left_out),
        counts=counts,
        left_out=left_out,
        findings=findings,
        mended=filling.mended,
    )


class _Filling:
    """Encoder by encoder, until every content has its features."""

    def __init__(
        self,
        survey: Survey,
        store: FeatureStore | None,
        share: Share,
        findings: Findings,
        progress: Progress | None,
    ) -> None:
        self.survey, self.store, self.share = survey, store, share
        self.findings, self.progress = findings, progress
        self.sources: dict[str, Source] = {}
        self.new: dict[str, int] = {}
        self.bad: dict[bytes, Finding] = {}
        self.mended: list[str] = []

    def run(self, identity: Identity, names: Sequence[str], encoder: Encoder) -> None:
        """The contents of these modalities, all read by this encoder."""
        contents = self.survey.contents(names)
        if self.store is None:
            source: Source | Features = Memory(identity)
            new = len(contents)
            self._fill(source, contents, encoder)
        else:
            source, new = self._stored(self.store, identity, contents, encoder)
        self.sources |= dict.fromkeys(names, source)
        self.new |= dict.fromkeys(names, new)

    def _stored(
        self, store: FeatureStore, identity: Identity, contents: Mapping[bytes, Any], encoder: Encoder
    ) -> tuple[Features, int]:
        """Nothing is written, and nobody is refused, where all of it is there already."""
        kept = Features(store.folder, identity)
        whole = not store.verify and not kept.damaged and all(key in kept for key in contents) and kept.as_listed()
        if all(each for [each] in self.share.collect([whole])):
            return kept, 0
        with filling(store, self.share):
            return self._fill_store(store, identity, contents, encoder)

    def _fill_store(
        self, store: FeatureStore, identity: Identity, contents: Mapping[bytes, Any], encoder: Encoder
    ) -> tuple[Features, int]:
        if self.share.first:
            self.mended += mend(store, identity)
        self.share.wait()
        kept = Features(store.folder, identity)
        new = sum(key not in kept for key in contents)
        refuse_too_little_room(kept, new)
        self.share.wait()  # nobody may write before everybody has counted
        writer = ShardWriter(kept, store)
        mine = {key: contents[key] for key in self.share.of(list(contents)) if key not in kept}
        self._fill(writer, mine, encoder)
        for theirs in self.share.collect(list(self.bad.items())):
            self.bad |= dict(theirs)
        kept.refresh()
        if self.share.first:
            writer.finish()
        self.share.wait()
        return kept, new

    def _fill(self, sink: Any, contents: Mapping[bytes, Any], encoder: Encoder) -> None:
        if encoder.kind == "text":  # texts of a batch are padded to the longest: like goes with like
            contents = dict(sorted(contents.items(), key=lambda pair: -len(pair[1]())))
        done = 0

        def advance(more: int) -> None:
            nonlocal done
            done += more
            if self.progress:
                self.progress(encoder.name, done, len(contents))

        fill(sink, contents, encoder, bad=self._note, done=advance)

    def _note(self, key: bytes, finding: Finding) -> None:
        if self.findings.on_bad == "raise":
            raise as_error(finding)
        self.bad[key] = finding


def refuse_too_little_room(kept: Features, new: int) -> None:
    """An error, before anything is encoded, if so many new contents cannot fit on the disk.

    As large as those that are kept already; where there are none, as small as can be: one token each.
    """
    least = kept.identity.width * DTYPES[kept.identity.dtype].itemsize
    mean = sum(shard.size for shard in kept.shards.values()) / len(kept) if len(kept) else least
    needed, free = new * max(mean, least), free_bytes(kept.folder)
    if needed > free:
        raise StoreError(
            f"{kept.folder}: {new:,} contents take at least {in_bytes(needed)}, and {in_bytes(free)} are free on its "
            "disk: make room, or choose another place for the store"
        )


def _rows(survey: Survey, filling: _Filling, findings: Findings) -> tuple[dict[str, list[EncodedRow]], dict[str, int]]:
    """The examples of which everything could be encoded, and how many could not, by split."""
    sources = [filling.sources[name] for name in survey.names]
    rows: dict[str, list[EncodedRow]] = {}
    left_out: Counter[str] = Counter()
    for finding in filling.bad.values():
        findings.report(finding.kind, finding.message, file=finding.file)
    for split, surveyed in survey.splits.items():
        rows[split] = []
        for place, row in enumerate(surveyed):
            if isinstance(row, Finding):
                findings.report(row.kind, row.message, file=row.file)
                left_out[split] += 1
            elif any(key in filling.bad for keys in row for key in each_of(keys)):
                left_out[split] += 1
            else:
                at = tuple(places_of(source, keys) for source, keys in zip(sources, row, strict=True))
                rows[split].append(EncodedRow(place, at))
    return rows, dict(left_out)


def _count(name: str, rows: Mapping[str, Sequence[EncodedRow]], filling: _Filling) -> Count:
    source, at = filling.sources[name], filling.survey.names.index(name)
    places = {place for split in rows.values() for row in split for place in each_place(row.features[at])}
    return Count(
        encoder=source.identity.name,
        distinct=len(places),
        new=filling.new[name],
        truncated=sum(map(source.cut, places)),
    )


def _encoded(
    data: DataSet,
    rows: Mapping[str, Sequence[EncodedRow]],
    filling: _Filling,
    counts: Mapping[str, Count],
    left_out: Mapping[str, int],
) -> DataSet:
    splits: dict[str, Split] = {}
    for name, split in data.splits.items():
        maker = ExampleMaker(split, filling.sources)
        splits[name] = Rows(rows[name], maker, stamp=maker.stamp)
    identities = {name: source.identity for name, source in filling.sources.items()}
    widths = {name: features(identity.width) for name, identity in identities.items()}
    facts: dict[str, Any] = {
        "encoders": {name: identity.name for name, identity in identities.items()},
        "features": {
            name: {part: getattr(identity, part) for part in ("revision", "weight_hash", "dtype")}
            for name, identity in identities.items()
        },
        "truncated": {name: count.truncated for name, count in counts.items()},
        "not encoded": dict(left_out),
    }
    return replace(data, splits=splits, modalities={**data.modalities, **widths}, facts={**data.facts, **facts})


def _by_identity(encoders: Mapping[str, Encoder], dtype: str) -> dict[Identity, list[str]]:
    """Modalities that are encoded alike share their features."""
    alike: dict[Identity, list[str]] = {}
    for name, encoder in encoders.items():
        alike.setdefault(Identity.of(encoder, dtype), []).append(name)
    return alike


def _check_encoders(data: DataSet, encoders: Mapping[str, Encoder]) -> None:
    for name, encoder in encoders.items():
        if name not in data.modalities:
            raise ValueError(f"{data.name} has no modality {name!r} to encode: {nearest(name, data.modalities)}")
        if data.modalities[name].kind != encoder.kind:
            kind = data.modalities[name].kind
            raise ValueError(
                f"{data.name}: {name!r} is of kind {kind!r}, the encoder {encoder.name!r} reads {encoder.kind}"
            )
    missing = [name for name, modality in data.modalities.items() if modality.width is None and name not in encoders]
    if missing:
        raise ValueError(f"{data.name}: no encoder was given for {', '.join(map(repr, missing))}")
