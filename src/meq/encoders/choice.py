"""Which encoder reads what: the one that was asked for by name, or the built-in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.encoders.builtin import default_encoders
from meq.encoders.catalogue import make_encoder
from meq.encoders.contract import Encoder


def choose_encoders(data: DataSet, names: Mapping[str, str]) -> dict[str, Encoder]:
    """An encoder for every modality that is not features yet; `names` maps modalities to encoders' names."""
    raw = [name for name, modality in data.modalities.items() if modality.width is None]
    for modality in names:
        if modality not in raw:
            raise ValueError(f"{data.name} has no modality {modality!r} to encode: {nearest(modality, raw)}")
    chosen = {name: make_encoder(str(encoder), data.modalities[name].kind) for name, encoder in names.items()}
    rest = {name: data.modalities[name] for name in raw if name not in names}
    return {**chosen, **default_encoders(replace(data, modalities=rest))}
