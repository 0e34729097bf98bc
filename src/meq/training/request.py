"""What a run was asked to train on, kept in its folder: so that the same data can be read again, and new data alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meq.data.request import DataRequest
from meq.training.sealed import read_sealed, write_sealed

REQUEST = "request.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The data, its columns and its encoders, as they were asked for. Paths are as they were given."""

    schema: int = SCHEMA
    data: str
    root: str | None = None
    images: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    audios: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    label: str | None = None
    split: str | None = None
    group: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    encoders: Mapping[str, str] = field(default_factory=dict)
    """By kind of content, as `meq.encoders.catalogue.make_encoder` takes them: a name, or a folder."""
    store: str | None = None
    """The feature store."""
    skip_bad: bool = False

    @classmethod
    def of(
        cls, asked: DataRequest, encoders: Mapping[str, str], *, store: Path | None = None, skip_bad: bool = False
    ) -> RunRequest:
        return cls(
            data=asked.data,
            root=None if asked.root is None else str(asked.root),
            images=tuple(asked.images),
            texts=tuple(asked.texts),
            audios=tuple(asked.audios),
            vectors=tuple(asked.vectors),
            label=asked.label,
            split=asked.split,
            group=asked.group,
            options=dict(asked.options),
            encoders=dict(encoders),
            store=None if store is None else str(store),
            skip_bad=skip_bad,
        )

    def data_request(self) -> DataRequest:
        """What to open to read the run's own data again."""
        return DataRequest(
            data=self.data,
            root=None if self.root is None else Path(self.root),
            images=self.images,
            texts=self.texts,
            audios=self.audios,
            vectors=self.vectors,
            label=self.label,
            split=self.split,
            group=self.group,
            options=self.options,
        )


def write_request(folder: Path, request: RunRequest) -> None:
    write_sealed(folder / REQUEST, request)


def read_request(folder: Path) -> RunRequest | None:
    """The request of a run's folder; None where it has none, as with runs of a study or of an older version."""
    path = folder / REQUEST
    return read_sealed(RunRequest, path) if path.is_file() else None
