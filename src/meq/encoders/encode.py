"""From a data set of pictures, texts and sounds to one of features, kept in memory or in a feature store."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from meq.data.content import Content
from meq.data.contract import DataSet, Example, Rows, Split, features, stamp_of
from meq.data.findings import DataError, Finding, Findings, OnBad
from meq.encoders.contract import Encoder, Tokens
from meq.encoders.store import Features, FeatureStore, Identity, Memory
from meq.encoders.survey import (
    Contents,
    Keys,
    Progress,
    Share,
    Survey,
    as_error,
    broken,
    each_of,
    name_of,
    take_survey,
    this_process,
)
from meq.encoders.writing import ShardWriter, filling, mend, refuse_too_little_room
from meq.options import checked_options, nearest

KEPT_EXAMPLES, KEPT_NUMBERS = 50_000, 64
"""Splits up to this size, with targets up to this size, are kept in memory but for their features."""

BATCH = 32
"""Contents that are given to an encoder at once."""

Bad = Callable[[bytes, Finding], None]
"""Told of a content that cannot be encoded, by its key; may raise."""
Source = Features | Memory
"""Where features are read from."""
Places = int | tuple[int, ...] | None
"""Where the features of one modality are, or those of each choice; None where the example lacks the modality."""


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
    work = _Encoding(survey, where, share, on_bad, progress)
    alike: dict[Identity, list[str]] = {}  # modalities that are encoded alike share their features
    for name, encoder in encoders.items():
        alike.setdefault(Identity.of(encoder, "float32" if where is None else where.dtype), []).append(name)
    for identity, names in alike.items():
        work.run(identity, names, encoders[names[0]])
    rows, left_out = _rows(survey, work, findings)
    if left_out and not any(rows.values()):
        message = f"{data.name}: nothing is left of its {sum(left_out.values()):,} examples, none could be encoded"
        raise DataError(message, *findings.first())
    counts = {name: _count(name, rows, work) for name in encoders}
    return Encoded(
        data=_encoded(data, rows, work.sources, counts, left_out),
        counts=counts,
        left_out=left_out,
        findings=findings,
        mended=work.mended,
    )


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


class _Encoding:
    """Encoder by encoder, until every content has its features."""

    def __init__(
        self, survey: Survey, store: FeatureStore | None, share: Share, on_bad: OnBad, progress: Progress | None
    ) -> None:
        self.survey, self.store, self.share = survey, store, share
        self.on_bad, self.progress = on_bad, progress
        self.sources: dict[str, Source] = {}
        self.new: dict[str, int] = {}
        self.bad: dict[bytes, Finding] = {}
        self.mended: list[str] = []

    def run(self, identity: Identity, names: Sequence[str], encoder: Encoder) -> None:
        """The contents of these modalities, all read by this encoder."""
        contents = self.survey.contents(names)
        source: Source
        if self.store is None:
            memory, new = Memory(identity), len(contents)
            self._fill(memory, contents, encoder)
            source = memory
        else:
            source, new = self._stored(self.store, identity, contents, encoder)
        self.sources |= dict.fromkeys(names, source)
        self.new |= dict.fromkeys(names, new)

    def _stored(
        self, store: FeatureStore, identity: Identity, contents: Contents, encoder: Encoder
    ) -> tuple[Features, int]:
        """Nothing is written, and nobody is refused, where all of it is there already."""
        kept = Features(store.folder, identity)
        whole = not store.verify and not kept.damaged and all(key in kept for key in contents) and kept.as_listed()
        if all(each for [each] in self.share.collect([whole])):
            return kept, 0
        with filling(store, self.share):
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

    def _fill(self, sink: ShardWriter | Memory, contents: Contents, encoder: Encoder) -> None:
        """Encode the contents that are not there yet, batch by batch; a content is made when its turn comes."""
        keys = list(contents)
        if encoder.kind == "text":  # texts of a batch are padded to the longest: like goes with like
            keys.sort(key=lambda key: -len(str(contents[key]())))
        try:
            for start in range(0, len(keys), BATCH):
                batch = keys[start : start + BATCH]
                missing = {key: contents[key]() for key in batch if key not in sink}
                for key, tokens, cut in encode_batch(encoder, missing, self._note):
                    sink.add(key, tokens, cut=cut)
                if self.progress:
                    self.progress(encoder.name, start + len(batch), len(keys))
        except (DataError, KeyboardInterrupt):
            sink.flush()  # what was encoded until now need not be encoded again
            raise
        sink.flush()

    def _note(self, key: bytes, finding: Finding) -> None:
        if self.on_bad == "raise":
            raise as_error(finding)
        self.bad[key] = finding


def encode_batch(encoder: Encoder, contents: Mapping[bytes, Content], bad: Bad) -> Iterator[tuple[bytes, Tokens, bool]]:
    """Keys, tokens, and whether the content was cut. `bad` is told of contents that cannot be encoded.

    An encoder only counts what it cuts: where that was some of a batch and not all, each is encoded alone to see. So is
    each of a batch that holds something that cannot be encoded.
    """
    if not contents:
        return
    before, problem = encoder.truncated, None
    try:
        encoded = encoder(list(contents.values()))
    except DataError as error:
        problem = error
    cut = encoder.truncated - before
    if len(contents) > 1 and (problem or 0 < cut < len(contents)):
        encoder.truncated = before  # they are counted again, one by one
        for key, content in contents.items():
            yield from encode_batch(encoder, {key: content}, bad)
        return
    if problem:
        [(key, content)] = contents.items()
        bad(key, broken(content, str(problem)))
        return
    if len(encoded) != len(contents):
        raise ValueError(f"{encoder.name} was given {len(contents)} contents and encoded {len(encoded)}")
    for (key, content), tokens in zip(contents.items(), encoded, strict=True):
        if bool(tokens.features.isfinite().all()):
            yield key, tokens, cut > 0
        else:
            message = f"{encoder.name} gave features that are not finite"
            bad(key, Finding(kind="not finite", message=message, file=name_of(content)))


# -- the data set of features ------------------------------------------------------------------------------------------


class EncodedRow(NamedTuple):
    """What is kept of an example: its place in the split it came from, and the places of its features."""

    place: int
    features: tuple[Places, ...]


def _rows(survey: Survey, work: _Encoding, findings: Findings) -> tuple[dict[str, list[EncodedRow]], dict[str, int]]:
    """The examples of which everything could be encoded, and how many could not, by split."""
    sources = [work.sources[name] for name in survey.names]
    rows: dict[str, list[EncodedRow]] = {}
    left_out: Counter[str] = Counter()
    for finding in work.bad.values():
        findings.report(finding.kind, finding.message, file=finding.file)
    for split, surveyed in survey.splits.items():
        rows[split] = []
        for place, row in enumerate(surveyed):
            if isinstance(row, Finding):
                findings.report(row.kind, row.message, file=row.file)
                left_out[split] += 1
            elif any(key in work.bad for keys in row for key in each_of(keys)):
                left_out[split] += 1
            else:
                at = tuple(_places(source, keys) for source, keys in zip(sources, row, strict=True))
                rows[split].append(EncodedRow(place, at))
    return rows, dict(left_out)


def _places(source: Source, keys: Keys) -> Places:
    if keys is None:
        return None
    return tuple(map(source.place, keys)) if isinstance(keys, tuple) else source.place(keys)


def _count(name: str, rows: Mapping[str, Sequence[EncodedRow]], work: _Encoding) -> Count:
    source, at = work.sources[name], work.survey.names.index(name)
    places = {place for split in rows.values() for row in split for place in each_of(row.features[at])}
    return Count(
        encoder=source.identity.name,
        distinct=len(places),
        new=work.new[name],
        truncated=sum(map(source.cut, places)),
    )


def _encoded(
    data: DataSet,
    rows: Mapping[str, Sequence[EncodedRow]],
    sources: Mapping[str, Source],
    counts: Mapping[str, Count],
    left_out: Mapping[str, int],
) -> DataSet:
    splits: dict[str, Split] = {}
    for name, split in data.splits.items():
        maker = ExampleMaker(split, sources)
        splits[name] = Rows(rows[name], maker, stamp=maker.stamp)
    identities = {name: source.identity for name, source in sources.items()}
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


class ExampleMaker:
    """From a row to its example, with features in place of what was encoded; they are read when they are asked for."""

    def __init__(self, split: Split, sources: Mapping[str, Source]) -> None:
        self.split, self.sources = split, sources
        self.kept: dict[int, Example] = {}

    def __call__(self, row: EncodedRow) -> Example:
        rest, content = self._rest(row.place), {}
        for name, source, places in self._features(row):
            content[name] = tuple(map(source.read, places)) if isinstance(places, tuple) else source.read(places)
        facts = {**rest.facts, "tokens": partial(self.tokens, row)}
        return Example(id=rest.id, content={**rest.content, **content}, target=rest.target, facts=facts)

    def tokens(self, row: EncodedRow) -> dict[str, tuple[Tokens, ...]]:
        """By modality, one per choice: features, and where in the original each token lies."""
        return {name: tuple(map(source.tokens, each_of(places))) for name, source, places in self._features(row)}

    def stamp(self, row: EncodedRow) -> bytes:
        """Features are known by what was encoded and by which encoder: no need to read them."""
        known = {}
        for name, source, places in self._features(row):
            keys = b"".join(map(source.key, each_of(places)))
            known[name] = hashlib.sha256(source.identity.digest.encode() + keys).digest()
        return stamp_of(self._rest(row.place), known)

    def _features(self, row: EncodedRow) -> Iterator[tuple[str, Source, int | tuple[int, ...]]]:
        for (name, source), places in zip(self.sources.items(), row.features, strict=True):
            if places is not None:
                yield name, source, places

    def _rest(self, place: int) -> Example:
        """The example without what was encoded; kept where it is small, since making it can cost more than reading."""
        if place in self.kept:
            return self.kept[place]
        example = self.split[place]
        rest = {name: content for name, content in example.content.items() if name not in self.sources}
        example = replace(example, content=rest)
        small = not rest and (example.target is None or example.target.numel() <= KEPT_NUMBERS)
        if small and len(self.split) <= KEPT_EXAMPLES:
            self.kept[place] = example
        return example
