"""Which encoder reads what: one that was asked for by name, one whose weights are installed, or the built-in one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from importlib import util

import torch

from meq.core.options import nearest
from meq.data.contract import DataSet
from meq.data.findings import DataError
from meq.data.request import DataRequest
from meq.data.table_files import is_table
from meq.encoders.builtin import default_encoders
from meq.encoders.catalogue import check_encoder_name, make_encoder
from meq.encoders.contract import Encoder
from meq.encoders.offline import CNN_PACKAGE, MINILM_PACKAGE

OFFLINE = {"image": "cnn", "text": "minilm"}
"""Encoders whose weights come with pip: the better choice for photographs and free text, where they are installed."""
NEEDED = {"image": (CNN_PACKAGE[0],), "text": (MINILM_PACKAGE[0], "transformers")}
BUILT_IN = {"image": "patches", "text": "words"}


def choose_encoders(data: DataSet, names: Mapping[str, str]) -> dict[str, Encoder]:
    """An encoder for every modality that is not features yet; `names` maps modalities to encoders' names."""
    raw = [name for name, modality in data.modalities.items() if modality.width is None]
    for modality in names:
        if modality not in raw:
            raise ValueError(f"{data.name} has no modality {modality!r} to encode: {nearest(modality, raw)}")
    chosen = {name: make_encoder(str(encoder), data.modalities[name].kind) for name, encoder in names.items()}
    rest = {name: data.modalities[name] for name in raw if name not in names}
    return {**chosen, **default_encoders(replace(data, modalities=rest))}


def preferred_names(data: DataSet, chosen: Mapping[str, str | None]) -> dict[str, str]:
    """Names by kind for pictures and texts of the real world: those chosen, else offline ones, else the built-in ones.

    The offline ones are taken where the extra is installed. Kinds that have neither are left to `encoders_by_kind`.
    """
    kinds = {modality.kind for modality in data.modalities.values() if modality.width is None}
    names = {kind: name for kind, name in chosen.items() if name is not None}
    for kind in kinds & OFFLINE.keys():
        names.setdefault(kind, OFFLINE[kind] if offline_is_installed(kind) else BUILT_IN[kind])
    return names


def offline_is_installed(kind: str) -> bool:
    """Whether the weights for that kind of content came with pip; nothing is imported to find out."""
    return all(util.find_spec(module) is not None for module in NEEDED[kind])


def check_request(request: DataRequest, chosen: Mapping[str, str | None]) -> None:
    """An error for what can be known to be wrong before any row is read: the data asked for, and encoders by kind."""
    request.check()
    named = {kind: name for kind, name in chosen.items() if name is not None}
    if is_table(request.data):
        columns = {"image": request.images, "text": request.texts, "audio": request.audios}
        for kind, name in named.items():
            if not columns.get(kind):
                raise DataError(f"{request.data}: no column of kind {kind!r} is named that {name!r} could encode")
        if request.audios and "audio" not in named:
            raise DataError(
                f"{request.data}: {', '.join(map(repr, request.audios))} holds sounds, and no built-in encoder "
                "describes those: name one for it (--audio-encoder wav2vec2, or any audio model of transformers), or "
                "give ready features (--vector)"
            )
    for kind, name in named.items():
        check_encoder_name(name, kind)


def encoding_device() -> str:
    """The accelerator of this process, if there is one."""
    if not torch.accelerator.is_available():
        return "cpu"
    return f"{torch.accelerator.current_accelerator()}:{os.environ.get('LOCAL_RANK', '0')}"


def encoders_by_kind(
    data: DataSet, chosen: Mapping[str, str | None], *, batch_size: int = 32, device: str = "cpu"
) -> dict[str, Encoder]:
    """The chosen encoder for every modality of its kind, the built-in one where none was chosen."""
    raw = {name: modality.kind for name, modality in data.modalities.items() if modality.width is None}
    for kind, encoder in chosen.items():
        if encoder is not None and kind not in raw.values():
            raise DataError(f"{data.name} holds nothing of kind {kind!r} that {encoder!r} could encode")
    named = {kind: encoder for kind, encoder in chosen.items() if encoder is not None}
    made = {kind: make_encoder(encoder, kind, batch_size=batch_size, device=device) for kind, encoder in named.items()}
    rest = {name: data.modalities[name] for name, kind in raw.items() if kind not in made}
    built_in = default_encoders(replace(data, modalities=rest))
    return {name: made[kind] if kind in made else built_in[name] for name, kind in raw.items()}
