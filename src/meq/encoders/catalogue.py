"""The encoders by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path

from meq.core.options import nearest
from meq.encoders.builtin import Patches, Words
from meq.encoders.contract import Encoder
from meq.encoders.offline import CNN_PACKAGE, MINILM_PACKAGE, ImageNetCells, MiniLM
from meq.encoders.pretrained import EncoderError, find
from meq.encoders.regions import PictureRegions
from meq.encoders.transformer_audio import WAV2VEC2, TransformerAudio
from meq.encoders.transformer_image import CLIP, TransformerImage
from meq.encoders.transformer_text import BERT, TransformerText

KINDS = ("image", "regions", "text", "audio")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How an encoder is to run: what it makes does not depend on it, up to rounding."""

    batch_size: int
    device: str


@dataclass(frozen=True, kw_only=True)
class EncoderEntry:
    """An encoder one can ask for by name."""

    make: Mapping[str, Callable[[Setting], Encoder]]
    """By what is to be read: image, regions, text or audio."""
    summary: str
    needs: str
    """What must be there for it: nothing, an extra, a download."""
    modules: tuple[str, ...] = ()
    """What must be installed for it, by the names it is imported by."""
    model: str | None = None
    """The model of transformers that it is."""


def make_encoder(name: str, kind: str, *, batch_size: int = 32, device: str = "cpu") -> Encoder:
    """The encoder of that name for contents of that kind.

    A name with a slash, or of a folder, is that of a transformers model.
    """
    setting = Setting(batch_size=batch_size, device=device)
    return _maker(name, kind)(setting)


def check_encoder_name(name: str, kind: str) -> None:
    """An error if there is no such encoder for that kind, or it cannot be had here. No weights are loaded yet."""
    _maker(name, kind)
    needs = "pip install 'meq[encoders]'"
    modules: tuple[str, ...] = ("transformers",)
    model: str | None = name
    if name in ENCODERS:
        entry = ENCODERS[name]
        needs, modules, model = entry.needs, entry.modules, entry.model
    missing = [module for module in modules if util.find_spec(module) is None]
    if missing:
        raise EncoderError(f"the encoder {name!r} needs {', '.join(missing)}, not installed here: {needs}")
    if model is not None:
        find(model, kind=kind)


def _maker(name: str, kind: str) -> Callable[[Setting], Encoder]:
    if kind not in KINDS:
        raise EncoderError(f"nothing is encoded of the kind {kind!r}: {nearest(kind, KINDS)}")
    if name in ENCODERS:
        makers = ENCODERS[name].make
        if kind not in makers:
            fitting = [other for other, entry in ENCODERS.items() if kind in entry.make]
            raise EncoderError(f"the encoder {name!r} reads {' or '.join(makers)}, not {kind}: take {_either(fitting)}")
        return makers[kind]
    if "/" in name or Path(name).is_dir():
        return _transformer(name)[kind]
    raise EncoderError(
        f"there is no encoder {name!r}: {nearest(name, ENCODERS)} Or a transformers model: its name on the Hub, with a "
        "slash, or its folder."
    )


def _transformer(model: str) -> dict[str, Callable[[Setting], Encoder]]:
    def image(setting: Setting) -> TransformerImage:
        return TransformerImage(model, batch_size=setting.batch_size, device=setting.device)

    def text(setting: Setting) -> Encoder:
        return TransformerText(model, batch_size=setting.batch_size, device=setting.device)

    def audio(setting: Setting) -> Encoder:
        return TransformerAudio(model, device=setting.device)

    def regions(setting: Setting) -> Encoder:
        find(model, kind="regions")  # where it is not there, the error is to name encoders of regions
        return PictureRegions(image(setting))

    return {"image": image, "regions": regions, "text": text, "audio": audio}


def _cells(setting: Setting) -> ImageNetCells:
    return ImageNetCells(batch_size=setting.batch_size, device=setting.device)


def _either(names: list[str]) -> str:
    return " or ".join(map(repr, names))


ENCODERS: Mapping[str, EncoderEntry] = {
    "patches": EncoderEntry(
        make={"image": lambda setting: Patches()},
        summary="patches of a picture by fixed descriptors: colours, edges, outline",
        needs="nothing",
    ),
    "words": EncoderEntry(
        make={"text": lambda setting: Words()}, summary="words by a vocabulary and by hashing", needs="nothing"
    ),
    "cnn": EncoderEntry(
        make={"image": _cells, "regions": lambda setting: PictureRegions(_cells(setting))},
        summary="EfficientNet-Lite0, trained on ImageNet: 7 x 7 cells",
        needs="pip install 'meq[offline]'",
        modules=(CNN_PACKAGE[0],),
    ),
    "minilm": EncoderEntry(
        make={"text": lambda setting: MiniLM(batch_size=setting.batch_size, device=setting.device)},
        summary="all-MiniLM-L6-v2, six layers of BERT",
        needs="pip install 'meq[offline]'",
        modules=(MINILM_PACKAGE[0], "transformers"),
    ),
    "clip": EncoderEntry(
        make={kind: make for kind, make in _transformer(CLIP).items() if kind != "audio"},
        summary=CLIP,
        needs="pip install 'meq[encoders]', and its weights from the Hub",
        modules=("transformers",),
        model=CLIP,
    ),
    "bert": EncoderEntry(
        make={"text": _transformer(BERT)["text"]},
        summary=BERT,
        needs="pip install 'meq[encoders]', and its weights from the Hub",
        modules=("transformers",),
        model=BERT,
    ),
    "wav2vec2": EncoderEntry(
        make={"audio": _transformer(WAV2VEC2)["audio"]},
        summary=WAV2VEC2,
        needs="pip install 'meq[encoders]', and its weights from the Hub",
        modules=("transformers",),
        model=WAV2VEC2,
    ),
}
