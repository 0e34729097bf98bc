"""One contract for every data set: what an example is, how examples become a batch, what a set says of itself."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, overload

import numpy as np

from meq.data.content import Content, Target, Tree, fingerprint_of
from meq.data.findings import DataError, Findings
from meq.data.metrics import Metric

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Example:
    """One sample: what each modality holds; a modality it lacks is left out."""

    id: str
    content: Mapping[str, Content]
    target: Target | None
    """A tensor; None where the split has no labels."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is known of it besides: the kind of question, the mask of the object, the picture's name."""


def plain_example(
    *,
    id: str,  # noqa: A002, the name of the field
    content: Mapping[str, Any],
    target: Any,
    facts: Mapping[str, Any],
) -> Example:
    """An example with numbers and numpy arrays in place of tensors, as a reader of files makes it.

    `Rows` makes tensors of them when the example is asked for. Until then nothing needs torch: a data set can be read
    and checked without it.
    """
    return Example(id=id, content=content, target=target, facts=facts)


class PictureText(NamedTuple):
    """A row of a data set in which every picture comes with a text."""

    id: str
    picture: str
    """Its path in the folder of pictures."""
    text: str
    label: int | None
    line: int
    """Of its file."""


def picture_text_example(pictures: Tree, row: PictureText) -> Example:
    """The example of such a row."""
    return plain_example(
        id=row.id,
        content={"image": pictures.picture(row.picture), "text": row.text},
        target=row.label,
        facts={"picture": row.picture},
    )


def with_tensors(example: Example) -> Example:
    """The example, with tensors in place of numbers and numpy arrays."""
    plain = (np.ndarray, int, float)
    content = {name: as_tensor(x) for name, x in example.content.items() if isinstance(x, plain)}
    if isinstance(example.target, plain):
        return replace(example, content={**example.content, **content}, target=as_tensor(example.target))
    return replace(example, content={**example.content, **content}) if content else example


def as_tensor(value: np.ndarray[Any, Any] | int | float) -> Tensor:
    """An array as it is, a whole number as int64, any other as float32."""
    import torch

    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float32)


ModalityKind = Literal["features", "image", "regions", "text", "audio"]


@dataclass(frozen=True, kw_only=True)
class Modality:
    """What a modality's content is: pictures, regions, texts and sounds are encoded before a model sees them."""

    kind: ModalityKind = "features"
    width: int | None = None
    """Numbers per token, for features."""


IMAGE, REGIONS, TEXT = Modality(kind="image"), Modality(kind="regions"), Modality(kind="text")
AUDIO = Modality(kind="audio")


def features(width: int) -> Modality:
    """Numbers that are ready for a model: tokens (N W) or one vector (W)."""
    return Modality(kind="features", width=width)


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Examples padded to the longest of each modality; masks say what is real."""

    ids: list[str]
    features: dict[str, Tensor]
    masks: dict[str, Tensor]
    target: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> Batch:
        return Batch(
            ids=self.ids,
            features={name: x.to(device) for name, x in self.features.items()},
            masks={name: mask.to(device) for name, mask in self.masks.items()},
            target=self.target.to(device),
        )


Split = Sequence[Example]
"""A list, or `Rows`."""

Row = TypeVar("Row")


class Rows(Sequence[Example], Generic[Row]):
    """Examples that are made when they are asked for, from rows that are small to keep.

    `make` may give a `plain_example`. `stamp` gives what a fingerprint needs of a row, and `lengths` how many tokens it
    has by modality, where that is known without making the example.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        make: Callable[[Row], Example],
        *,
        stamp: Callable[[Row], bytes] | None = None,
        lengths: Callable[[Row], Mapping[str, int]] | None = None,
    ) -> None:
        self.rows, self.make, self.stamp, self.lengths = rows, make, stamp, lengths

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> Rows[Row]: ...
    def __getitem__(self, place: int | slice) -> Example | Rows[Row]:
        if isinstance(place, slice):
            return Rows(self.rows[place], self.make, stamp=self.stamp, lengths=self.lengths)
        return with_tensors(self.make(self.rows[place]))

    def plain(self) -> Iterator[Example]:
        """The examples as `make` gives them: with numbers and numpy arrays where it makes no tensors."""
        return map(self.make, self.rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """Named splits and what a model and an objective need to know about them.

    Training reads `train`, chooses on `dev` and reports on `test` where there is one; further splits keep the names
    their makers gave them.
    """

    name: str
    splits: Mapping[str, Split]
    modalities: Mapping[str, Modality]
    labels: Sequence[str]
    head: str
    metric: Metric
    also: Sequence[Metric] = ()
    """Further metrics that are reported, never selected by."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """How it was made, options and choices; part of every record."""
    answering: Sequence[str] = ()
    """With the head "tokens": the modalities whose tokens answer. An example's target then is a row of whole numbers,
    one per token of these modalities, one modality after the other; -1 where no answer is asked for."""

    def collate(self, examples: Sequence[Example]) -> Batch:
        """Examples of this set as a batch, see `collate`."""
        return collate(examples, self.widths, self.answering)

    @property
    def widths(self) -> dict[str, int]:
        """Numbers per token of every modality; an error while something has still to be encoded."""
        raw = [name for name, modality in self.modalities.items() if modality.width is None]
        if raw:
            kinds = ", ".join(f"{name!r} ({self.modalities[name].kind})" for name in raw)
            raise ValueError(f"{self.name}: {kinds} must be encoded before a model can read it: meq.encoders.encode")
        return {name: modality.width for name, modality in self.modalities.items() if modality.width is not None}

    def fingerprint(self) -> str:
        """A hash of every example's id, content and target, split by split."""
        digest = hashlib.sha256()
        for name, split in self.splits.items():
            digest.update(f"{name}:{len(split)};".encode())
            if isinstance(split, Rows) and split.stamp is not None:
                stamps = map(split.stamp, split.rows)
            else:
                stamps = map(stamp_of, split)
            for stamp in stamps:
                digest.update(stamp)
        return digest.hexdigest()


def filled(splits: Mapping[str, Split], findings: Findings, *, root: Path) -> dict[str, Split]:
    """The splits that hold something. One that does not is noted as absent; none at all is an error."""
    for name, split in splits.items():
        if not len(split):
            findings.absent.append(f"{name}: its file holds no row that can be used")
    kept = {name: split for name, split in splits.items() if len(split)}
    if not kept:
        counts = ", ".join(f"{kind}: {count}" for kind, count in findings.counts.items()) or "the files are empty"
        raise DataError(f"{root}: no row can be used ({counts})", *findings.first())
    return kept


def stamp_of(example: Example, known: Mapping[str, bytes] | None = None) -> bytes:
    """What a fingerprint takes of an example: id, contents, target. `known`: hashes of contents, in place of them."""
    hashes = dict(known or {})
    hashes |= {name: fingerprint_of(content) for name, content in example.content.items() if name not in hashes}
    contents = b"".join(f"{modality}:".encode() + hashed for modality, hashed in sorted(hashes.items()))
    target = b"unlabelled" if example.target is None else fingerprint_of(example.target)
    return f"{len(example.id)}:{example.id}".encode() + contents + target


def tensors_of(content: Content | None) -> tuple[Tensor, ...]:
    """The features of one modality of an example: one tensor, one per choice, or none where it is missing."""
    from torch import Tensor

    return tuple(x for x in (content if isinstance(content, tuple) else (content,)) if isinstance(x, Tensor))


def collate(examples: Sequence[Example], widths: Mapping[str, int], answering: Sequence[str] = ()) -> Batch:
    """Pad and stack. A modality that nobody in the batch has stays out; a mask is made only where one is needed.

    Features per choice become (B A N W), with masks (B A N). Targets per token, of the modalities `answering`, are
    padded as the tokens are, with -1.
    """
    import torch

    features: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for name, width in widths.items():
        padded = _pad(name, examples, width)
        if padded is None:
            continue
        features[name], real = padded
        if real is not None:
            masks[name] = real
    targets = [_target(example) for example in examples]
    if answering and any(target.ndim for target in targets):  # examples to be predicted have a zero instead
        lengths = {name: features[name].shape[1] if name in features else 1 for name in answering}
        targets = [_padded_answers(example, widths, lengths) for example in examples]
    target = torch.stack(targets)
    return Batch(ids=[example.id for example in examples], features=features, masks=masks, target=target)


def _pad(name: str, examples: Sequence[Example], width: int) -> tuple[Tensor, Tensor | None] | None:
    """One modality of a batch, and which of its tokens are real, None where all are; None if nobody has any."""
    import torch

    choices = _choices(name, examples)
    rows = [row for example in examples for row in _tokens(example, name, width, choices or 1)]
    lengths = [row.shape[0] for row in rows]
    longest = max(lengths)
    if longest == 0:
        return None
    if longest == min(lengths):
        x = torch.stack(rows)
        return (x if choices is None else x.unflatten(0, (-1, choices))), None
    pad = torch.nn.functional.pad
    filled_up = [
        row if count == longest else pad(row, (0, 0, 0, longest - count))
        for row, count in zip(rows, lengths, strict=True)
    ]
    x = torch.stack(filled_up)
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return (x, real) if choices is None else (x.unflatten(0, (-1, choices)), real.unflatten(0, (-1, choices)))


def _choices(name: str, examples: Sequence[Example]) -> int | None:
    """How many choices the examples offer in this modality; None where it is not a choice."""
    counts = {len(x) for example in examples if isinstance(x := example.content.get(name), tuple)}
    if len(counts) > 1:
        raise ValueError(f"{name!r}: the examples of a batch offer different numbers of choices: {sorted(counts)}")
    return counts.pop() if counts else None


def _tokens(example: Example, name: str, width: int, count: int) -> list[Tensor]:
    """The example's features, one (N W) per choice; empty ones where it lacks the modality."""
    import torch

    content = example.content.get(name)
    if content is None:
        return [torch.zeros(0, width)] * count
    return [_as_tokens(x, name, width, example) for x in (content if isinstance(content, tuple) else (content,))]


def _as_tokens(x: Any, name: str, width: int, example: Example) -> Tensor:
    from torch import Tensor

    if not isinstance(x, Tensor):
        raise ValueError(f"example {example.id!r}: {name!r} is a {type(x).__name__}; encode it first")
    if x.shape[-1] != width or x.ndim > 2:
        raise ValueError(
            f"example {example.id!r}: {name!r} has shape {tuple(x.shape)}, expected (N, {width}) or ({width},)"
        )
    return x[None] if x.ndim == 1 else x


def _padded_answers(example: Example, widths: Mapping[str, int], lengths: Mapping[str, int]) -> Tensor:
    """An example's answers per token, every modality filled up to its length in the batch."""
    import torch

    target = _target(example)
    counts = {name: len(_tokens(example, name, widths[name], 1)[0]) for name in lengths}
    if target.shape != (sum(counts.values()),) or target.is_floating_point():
        tokens = " and ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise ValueError(
            f"example {example.id!r}: its target is {target.dtype} of shape {tuple(target.shape)}, and it has {tokens} "
            "tokens: give one whole number per token, -1 where no answer is asked for"
        )
    parts = target.split(list(counts.values()))
    rows = zip(parts, lengths.values(), strict=True)
    return torch.cat([torch.nn.functional.pad(part, (0, length - len(part)), value=-1) for part, length in rows])


def _target(example: Example) -> Tensor:
    if example.target is None:
        raise ValueError(f"example {example.id!r} has no label: its split can be predicted, not trained or scored on")
    return example.target
