"""From X to what a model reads: numbers standardised, pictures and texts encoded, and batches of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meq.data.contract import IMAGE, TEXT, DataSet, Example, Split, collate
from meq.data.files import BadRowError
from meq.data.findings import DataError
from meq.data.metrics import ACCURACY
from meq.data.table_columns import ImageColumn, ModalityColumn, TextColumn
from meq.encoders import Encoder, make_encoder
from meq.encoders.catalogue import preferred_name
from meq.encoders.encode import encode
from meq.sklearn.columns import Groups, Numbers, Roles, grouped, numbers_of, plain_cells
from meq.training.updates import epoch_order

KINDS = {"image": (ImageColumn, IMAGE), "text": (TextColumn, TEXT)}
UNASKED = torch.zeros(())
"""The target of examples that are only encoded."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How X is read, fixed in training; plain values alone, since a pickle holds it."""

    roles: Roles | None
    """None for an array."""
    root: str
    groups: Mapping[str, Sequence[int]]
    """By modality: the places of its numbers."""
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    encoders: Mapping[str, tuple[str, str]]
    """By kind of content: an encoder's name, and the hash of all that decides its features."""

    def apply(self, x: Any) -> Inputs:
        """X, a frame or an array as in training, as a model reads it."""
        numbers = _numbers(x, self.roles)
        scaled = (numbers.matrix - np.array(self.mean)) / np.array(self.scale)
        tensor = torch.from_numpy(scaled.astype(np.float32))
        vectors = {name: tensor[:, list(places)] for name, places in self.groups.items()}
        if self.roles is None or not self.roles.contents():
            return Inputs(vectors, None, {}, len(x))
        data = contents_of(x, self.roles, self.root, alone=not self.groups)
        by_kind = {kind: same_encoder(name, kind, hashed) for kind, (name, hashed) in self.encoders.items()}
        encoded = encode(data, {name: by_kind[modality.kind] for name, modality in data.modalities.items()})
        return Inputs(vectors, encoded.splits["all"], encoded.widths, len(x))


@dataclass(frozen=True, eq=False)
class Inputs:
    """Rows of X as features."""

    vectors: Mapping[str, Tensor]
    """(rows, numbers) by modality."""
    encoded: Split | None
    token_widths: Mapping[str, int]
    rows: int

    @property
    def widths(self) -> dict[str, int]:
        """Of every modality. One alone is read by two sides, since an equilibrium is one of at least two."""
        widths = {name: x.shape[1] for name, x in self.vectors.items()} | dict(self.token_widths)
        return widths if len(widths) > 1 else {**widths, **{_again(name): width for name, width in widths.items()}}

    def batch(self, rows: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Features and masks of some rows."""
        features, masks = {name: x[rows] for name, x in self.vectors.items()}, {}
        if self.encoded is not None:
            tokens = collate([self.encoded[row] for row in rows.tolist()], self.token_widths)
            features, masks = features | tokens.features, tokens.masks
        if len(self.vectors) + len(self.token_widths) == 1:
            features |= {_again(name): x for name, x in features.items()}
            masks |= {_again(name): mask for name, mask in masks.items()}
        return features, masks


def _again(name: str) -> str:
    return f"{name}_again"


@dataclass(eq=False)
class RowBatches:
    """Some rows of X as batches for `meq.fit`, in another order in every epoch where a seed is given."""

    inputs: Inputs
    rows: Tensor
    target: Tensor
    """Of all rows of X, as the weights are."""
    weight: Tensor
    batch_size: int
    seed: int | None = None
    epoch: int = 0

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = self.rows
        if self.seed is not None:
            rows, self.epoch = rows[epoch_order(self.seed, self.epoch, len(rows))], self.epoch + 1
        for some in rows.split(self.batch_size):
            features, masks = self.inputs.batch(some)
            yield {"features": features, "masks": masks, "target": self.target[some], "weight": self.weight[some]}


def learn_reading(
    x: Any,
    weight: np.ndarray[Any, Any],
    *,
    names: Sequence[Any],
    roles: Roles | None,
    groups: Groups,
    root: str | Path | None,
    encoders: Mapping[str, str | None],
) -> Reading:
    """How X is to be read: groups of numbers with their weighted statistics, and an encoder per kind of content."""
    numbers = _numbers(x, roles)
    contents = {} if roles is None else roles.contents()
    by_group = grouped(groups, names, numbers.columns, alone=not contents)
    for name in contents:
        if name in by_group:
            raise DataError(f"there are two modalities {name!r}, a column and a group of numbers: rename the column")
    mean, scale = _moments(numbers.matrix, weight)
    place = str(Path("." if root is None else root))
    named: dict[str, tuple[str, str]] = {}
    if contents:
        assert roles is not None
        contents_of(x, roles, place, alone=not by_group)  # what is wrong is told before an encoder is loaded
        for kind in sorted({kind for _, kind in contents.values()}):
            name = encoders[kind] or preferred_name(kind)
            named[kind] = (name, encoder_named(name, kind).weight_hash)
    return Reading(roles=roles, root=place, groups=by_group, mean=mean, scale=scale, encoders=named)


def _numbers(x: Any, roles: Roles | None) -> Numbers:
    if roles is not None:
        return numbers_of(x, roles)
    return Numbers(np.asarray(x, dtype=np.float64), tuple(range(x.shape[1])))


def _moments(matrix: np.ndarray[Any, Any], weight: np.ndarray[Any, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Means and standard deviations; 1 for numbers that do not vary."""
    from sklearn.preprocessing import StandardScaler

    if not matrix.shape[1]:
        return (), ()
    found = StandardScaler().fit(matrix, sample_weight=weight)
    return tuple(found.mean_.tolist()), tuple(found.scale_.tolist())


# -- pictures and texts ------------------------------------------------------------------------------------------------


def contents_of(frame: Any, roles: Roles, root: str, *, alone: bool) -> DataSet:
    """The pictures and texts of a frame as a data set to encode; `alone`, every row needs one of them."""
    columns = {
        name: KINDS[kind][0](name, [str(column)], root=Path(root)) for name, (column, kind) in roles.contents().items()
    }
    cells = [plain_cells(frame[column]) for column, _ in roles.contents().values()]
    examples = []
    for row, given in enumerate(zip(*cells, strict=True)):
        kept = {name: _kept(columns[name], cell, row) for name, cell in zip(columns, given, strict=True)}
        content = {name: columns[name].content(each) for name, each in kept.items() if each is not None}
        if alone and not content:
            raise DataError(f"row {row} of X is empty in {', '.join(map(repr, columns))}: there is nothing to read")
        examples.append(Example(id=f"row {row}", content=content, target=UNASKED))
    modalities = {name: KINDS[kind][1] for name, (_, kind) in roles.contents().items()}
    return DataSet(
        name="X", splits={"all": examples}, modalities=modalities, labels=(), head="classes", metric=ACCURACY
    )


def _kept(column: ModalityColumn, cell: Any, row: int) -> Any:
    try:
        return column.keep([cell])
    except BadRowError as bad:
        raise DataError(f"row {row} of X: {bad}") from bad


@lru_cache(maxsize=8)  # weights are read once, not for every fold of a cross validation
def encoder_named(name: str, kind: str) -> Encoder:
    return make_encoder(name, kind)


def same_encoder(name: str, kind: str, hashed: str) -> Encoder:
    """The encoder of that name, or an error if it is another than that of training."""
    encoder = encoder_named(name, kind)
    if encoder.weight_hash != hashed:
        raise DataError(
            f"the {kind} encoder {name!r} has other weights here ({encoder.weight_hash[:12]}) than when this estimator "
            f"was fitted ({hashed[:12]}): install that version, or fit again"
        )
    return encoder
