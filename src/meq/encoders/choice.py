"""Which encoder reads what: one that was asked for by name, one whose weights are installed, or the built-in one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import util
from typing import TYPE_CHECKING

from meq.data.findings import DataError
from meq.data.table_files import is_table
from meq.encoders.catalogue import ENCODERS, check_encoder_name, make_encoder
from meq.options import nearest

if TYPE_CHECKING:
    from meq.data.contract import DataSet
    from meq.data.request import DataRequest
    from meq.encoders.contract import Encoder

OFFLINE = {"image": "cnn", "text": "minilm"}
"""Encoders whose weights come with pip: the better choice for photographs and free text, where they are installed."""
BUILT_IN = {"image": "patches", "text": "words"}
"""Encoders without weights."""
NOT_BUILT_IN = {
    "regions": (
        "regions of pictures, and no built-in encoder describes those: give a region encoder for it, such as CLIP's"
    ),
    "audio": (
        "sounds, and no built-in encoder describes those: name one for it (--audio-encoder wav2vec2, or any audio "
        "model of transformers), or give ready features (--vector)"
    ),
}
"""What is said of kinds of content that only a pretrained encoder reads."""


def default_encoders(data: DataSet) -> dict[str, Encoder]:
    """A built-in encoder for every modality that has to be encoded; a set that is drawn on a grid is cut along it.

    The facts of a set may say by which: `read_by` maps modalities to encoders' names, `grid` is that of its pictures.
    """
    return choose_encoders(data, {})


def choose_encoders(data: DataSet, names: Mapping[str, str]) -> dict[str, Encoder]:
    """An encoder for every modality that is not features yet; `names` maps modalities to encoders' names."""
    raw = _raw(data)
    for modality in names:
        if modality not in raw:
            raise ValueError(f"{data.name} has no modality {modality!r} to encode: {nearest(modality, raw)}")
    chosen = {name: make_encoder(str(encoder), raw[name]) for name, encoder in names.items()}
    return chosen | {name: _built_in(data, name, kind) for name, kind in raw.items() if name not in names}


def encoders_by_kind(
    data: DataSet, chosen: Mapping[str, str | None], *, batch_size: int = 32, device: str = "cpu"
) -> dict[str, Encoder]:
    """The chosen encoder for every modality of its kind, the built-in one where none was chosen."""
    raw = _raw(data)
    made = {}
    for kind, name in chosen.items():
        if name is None:
            continue
        if kind not in raw.values():
            raise DataError(f"{data.name} holds nothing of kind {kind!r} that {name!r} could encode")
        made[kind] = make_encoder(name, kind, batch_size=batch_size, device=device)
    return {name: made[kind] if kind in made else _built_in(data, name, kind) for name, kind in raw.items()}


def _raw(data: DataSet) -> dict[str, str]:
    """The modalities that are not features yet, with their kinds."""
    return {name: modality.kind for name, modality in data.modalities.items() if modality.width is None}


def _built_in(data: DataSet, modality: str, kind: str) -> Encoder:
    if kind not in BUILT_IN:
        raise ValueError(f"{data.name}: {modality!r} holds {NOT_BUILT_IN[kind]}")
    drawn = {"grid": int(data.facts["grid"])} if kind == "image" and "grid" in data.facts else {}
    own = data.facts.get("read_by", {})  # a generated set says which built-in encoder it was made for
    return make_encoder(own.get(modality, BUILT_IN[kind]), kind, options=drawn)


def preferred_names(data: DataSet, chosen: Mapping[str, str | None]) -> dict[str, str]:
    """Names by kind for pictures and texts of the real world: those chosen, else offline ones, else the built-in ones.

    The offline ones are taken where the extra is installed. Kinds that have neither are left to `encoders_by_kind`.
    """
    names = {kind: name for kind, name in chosen.items() if name is not None}
    for kind in OFFLINE.keys() & _raw(data).values():
        names.setdefault(kind, OFFLINE[kind] if offline_is_installed(kind) else BUILT_IN[kind])
    return names


def offline_is_installed(kind: str) -> bool:
    """Whether the weights for that kind of content came with pip; nothing is imported to find out."""
    return all(util.find_spec(module) is not None for module in ENCODERS.get(OFFLINE[kind]).modules)


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
            raise DataError(f"{request.data}: {', '.join(map(repr, request.audios))} holds {NOT_BUILT_IN['audio']}")
    for kind, name in named.items():
        check_encoder_name(name, kind)


def encoding_device() -> str:
    """The accelerator of this process, if there is one."""
    import torch

    if not torch.accelerator.is_available():
        return "cpu"
    return f"{torch.accelerator.current_accelerator()}:{os.environ.get('LOCAL_RANK', '0')}"
