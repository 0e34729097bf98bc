"""From a data set of pictures, texts and sounds to one of features, kept in memory or in a feature store.

Every example is looked at first, and its contents are known by their fingerprints from then on: each distinct content
is encoded once, however many examples hold it. Then encoder by encoder, until every content has its features. Examples
of the data set that comes out are made, and their features read, when they are asked for.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from meq.data.content import Content, Picture, Regions, Sound, fingerprint_of
from meq.data.contract import DataSet, Example, Rows, Split, features, stamp_of
from meq.data.findings import DataError, Finding, Findings, OnBad
from meq.encoders.contract import Encoder, Progress, Tokens
from meq.encoders.processes import Share, this_process
from meq.encoders.store import Features, FeatureStore, Identity, Memory
from meq.encoders.writing import ShardWriter, filling, mend, refuse_too_little_room
from meq.options import checked_options, nearest

KEPT_EXAMPLES, KEPT_NUMBERS = 50_000, 64
"""Splits up to this size, with targets up to this size, are kept in memory but for their features."""
BATCH = 32
"""Contents that are given to an encoder at once."""

Keys = bytes | tuple[bytes, ...] | None
"""The fingerprint of one modality's content, or one per choice; None where the example lacks the modality."""
Contents = Mapping[bytes, tuple[Split, int, str, int]]
"""By key, where each distinct content is to be had: split, place, modality, choice. It is made when its turn comes."""
Places = int | tuple[int, ...] | None
"""Where the features of one modality are, or those of each choice; None where the example lacks the modality."""
Source = Features | Memory
"""Where features are read from."""


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
    encoded again, and examples are read from it when they are asked for; without one, or with one that is only read,
    what is new stays in memory. Processes of one launch share the work. A picture that cannot be read is an error, or,
    with on_bad="skip", the examples that show it are left out and counted in the facts.

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
    work = _Encoding(data, tuple(encoders), where, on_bad, progress)
    alike: dict[Identity, list[str]] = {}  # modalities that are encoded alike share their features
    for name, encoder in encoders.items():
        alike.setdefault(Identity.of(encoder, "float32" if where is None else where.dtype), []).append(name)
    for identity, names in alike.items():
        work.run(identity, names, encoders[names[0]])
    rows, left_out = work.rows(findings)
    if left_out and not any(rows.values()):
        message = f"{data.name}: nothing is left of its {sum(left_out.values()):,} examples, none could be encoded"
        raise DataError(message, *findings.first())
    counts = {name: work.count(name, rows) for name in encoders}
    splits: dict[str, Split] = {}
    for split, examples in data.splits.items():
        maker = ExampleMaker(examples, work.sources)
        splits[split] = Rows(rows[split], maker, stamp=maker.stamp, lengths=maker.lengths)
    identities = {name: source.identity for name, source in work.sources.items()}
    widths = {name: features(identity.width) for name, identity in identities.items()}
    facts: dict[str, Any] = {
        "encoders": {name: identity.name for name, identity in identities.items()},
        "features": {
            name: {part: getattr(identity, part) for part in ("revision", "weight_hash", "dtype")}
            for name, identity in identities.items()
        },
        "truncated": {name: count.truncated for name, count in counts.items()},
        "not encoded": left_out,
    }
    encoded = replace(data, splits=splits, modalities={**data.modalities, **widths}, facts={**data.facts, **facts})
    return Encoded(data=encoded, counts=counts, left_out=left_out, findings=findings, mended=work.mended)


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


class EncodedRow(NamedTuple):
    """What is kept of an example: its place in the split it came from, and the places of its features."""

    place: int
    features: tuple[Places, ...]


class _Encoding:
    """One data set on its way: what its examples hold, and where the features of that are."""

    def __init__(
        self,
        data: DataSet,
        names: tuple[str, ...],
        store: FeatureStore | None,
        on_bad: OnBad,
        progress: Progress | None,
    ) -> None:
        self.data, self.names, self.store = data, names, store
        self.on_bad, self.progress = on_bad, progress
        self.share = Share() if store is None or store.read_only else this_process()
        self.sources: dict[str, Source] = {}
        self.new: dict[str, int] = {}
        self.bad: dict[bytes, Finding] = {}
        self.mended: list[str] = []
        self.keys = self._keys()

    def _keys(self) -> dict[str, list[tuple[Keys, ...] | Finding]]:
        """Of every example the keys of each modality that is encoded, or what is wrong with it, by split.

        Several processes share the examples out and tell each other what they saw.
        """
        known: dict[Picture | Sound, str] = {}  # a file is read once, however many examples hold it
        total, done = sum(len(self.share.of(range(len(split)))) for split in self.data.splits.values()), 0
        found = {}
        for name, split in self.data.splits.items():
            mine: list[tuple[Keys, ...] | Finding] = []
            for place in self.share.of(range(len(split))):
                mine.append(self._keys_of(split[place], known))
                done += 1
                if self.progress and (done % 100 == 0 or done == total):
                    self.progress("looking at the data", done, total)
            found[name] = self.share.gather(mine)
        return found

    def _keys_of(self, example: Example, known: dict[Picture | Sound, str]) -> tuple[Keys, ...] | Finding:
        keys: list[Keys] = []
        for name in self.names:
            content = example.content.get(name)
            try:
                if content is None:
                    keys.append(None)
                elif isinstance(content, tuple):
                    keys.append(tuple(fingerprint_of(choice, known) for choice in content))
                else:
                    keys.append(fingerprint_of(content, known))
            except DataError as error:
                finding = broken(example.content[name], str(error))
                if self.on_bad == "raise":
                    raise finding.as_error() from error
                return finding
        return tuple(keys)

    def _contents(self, modalities: Sequence[str]) -> Contents:
        """Each distinct content of these modalities."""
        found: dict[bytes, tuple[Split, int, str, int]] = {}
        for split, rows in self.keys.items():
            for place, row in enumerate(rows):
                for name, keys in () if isinstance(row, Finding) else zip(self.names, row, strict=True):
                    for choice, key in enumerate(each_of(keys)):
                        if name in modalities and key not in found:
                            found[key] = (self.data.splits[split], place, name, choice)
        return found

    def run(self, identity: Identity, names: Sequence[str], encoder: Encoder) -> None:
        """Encode the contents of these modalities, all read by this encoder."""
        contents = self._contents(names)
        source: Source
        if self.store is None or self.store.read_only:
            source, new = self._unwritten(self.store, identity, contents, encoder)
        else:
            source, new = self._stored(self.store, identity, contents, encoder)
        self.sources |= dict.fromkeys(names, source)
        self.new |= dict.fromkeys(names, new)

    def _unwritten(
        self, store: FeatureStore | None, identity: Identity, contents: Contents, encoder: Encoder
    ) -> tuple[Source, int]:
        """What the store has, where it has all of it; otherwise that and the rest in memory."""
        memory = Memory(identity)
        if store is not None:
            kept = Features(store.folder, identity)
            known = [(key, kept.place(key)) for key in contents if kept.is_sound(key)]
            if len(known) == len(contents):
                return kept, 0
            for key, place in known:
                memory.add(key, kept.tokens(place), cut=kept.cut(place))
        missing = {key: found for key, found in contents.items() if key not in memory}
        self._fill(memory, missing, encoder)
        return memory, len(missing)

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
        """Encode the contents that are not there yet, batch by batch."""

        def note(key: bytes, finding: Finding) -> None:
            if self.on_bad == "raise":
                raise finding.as_error()
            self.bad[key] = finding

        keys = list(contents)
        if encoder.kind == "text":  # texts of a batch are padded to the longest: like goes with like
            keys.sort(key=lambda key: -len(str(_content(*contents[key]))))
        try:
            for start in range(0, len(keys), BATCH):
                batch = keys[start : start + BATCH]
                missing = {key: _content(*contents[key]) for key in batch if key not in sink}
                for key, tokens, cut in encode_batch(encoder, missing, note):
                    sink.add(key, tokens, cut=cut)
                if self.progress:
                    self.progress(encoder.name, start + len(batch), len(keys))
        except (DataError, KeyboardInterrupt):
            sink.flush()  # what was encoded until now need not be encoded again
            raise
        sink.flush()

    def rows(self, findings: Findings) -> tuple[dict[str, list[EncodedRow]], dict[str, int]]:
        """The examples of which everything could be encoded, and how many could not, by split."""
        sources = [self.sources[name] for name in self.names]
        rows: dict[str, list[EncodedRow]] = {}
        left_out: Counter[str] = Counter()
        for finding in self.bad.values():
            findings.report(finding.kind, finding.message, file=finding.file)
        for split, examples in self.keys.items():
            rows[split] = []
            for place, row in enumerate(examples):
                if isinstance(row, Finding):
                    findings.report(row.kind, row.message, file=row.file)
                    left_out[split] += 1
                elif any(key in self.bad for keys in row for key in each_of(keys)):
                    left_out[split] += 1
                else:
                    pairs = zip(sources, row, strict=True)
                    rows[split].append(EncodedRow(place, tuple(_places(source, keys) for source, keys in pairs)))
        return rows, dict(left_out)

    def count(self, name: str, rows: Mapping[str, Sequence[EncodedRow]]) -> Count:
        source, at = self.sources[name], self.names.index(name)
        places = {place for split in rows.values() for row in split for place in each_of(row.features[at])}
        return Count(
            encoder=source.identity.name,
            distinct=len(places),
            new=self.new[name],
            truncated=sum(map(source.cut, places)),
        )


def _content(split: Split, place: int, name: str, choice: int) -> Content:
    content = split[place].content[name]
    return content[choice] if isinstance(content, tuple) else content


def _places(source: Source, keys: Keys) -> Places:
    if keys is None:
        return None
    return tuple(map(source.place, keys)) if isinstance(keys, tuple) else source.place(keys)


def each_of(keys: Any) -> tuple[Any, ...]:
    """The keys, or the places, of one modality of an example: none, one, or one per choice."""
    return () if keys is None else keys if isinstance(keys, tuple) else (keys,)


def encode_batch(
    encoder: Encoder, contents: Mapping[bytes, Content], bad: Callable[[bytes, Finding], None]
) -> Iterator[tuple[bytes, Tokens, bool]]:
    """Keys, tokens, and whether the content was cut. `bad` is told of contents that cannot be encoded, and may raise.

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
            bad(key, Finding(kind="not finite", message=message, file=_name_of(content)))


def broken(content: Content, message: str) -> Finding:
    """What is wrong with a content that could not be read."""
    name, kind = _name_of(content), "not encodable"
    if isinstance(content, Picture | Regions | Sound):
        kind = "broken sound" if isinstance(content, Sound) else "broken picture"
    return Finding(kind=kind, message=message.removeprefix(f"{name}: "), file=name)


def _name_of(content: Content) -> str:
    if isinstance(content, Regions):
        return str(content.picture)
    if isinstance(content, str):
        return f"the text {content[:60]!r}{'...' if len(content) > 60 else ''}"
    return str(content) if isinstance(content, Picture | Sound) else type(content).__name__


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

    def lengths(self, row: EncodedRow) -> dict[str, int]:
        """By modality that was encoded: the most tokens of its contents, without reading them."""
        return {name: max(map(source.length, each_of(places))) for name, source, places in self._features(row)}

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
