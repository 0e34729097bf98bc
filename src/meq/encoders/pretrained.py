"""Pretrained models: found in a folder, in the Hub's cache or on the Hub, and loaded without running foreign code.

Weights are read from safetensors where there are any, else from a .bin through torch's weights-only reader, which makes
tensors and nothing else. A model that brings its own Python files is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from meq.encoders.catalogue import INSTEAD, LOCAL, EncoderError
from meq.errors import needs
from meq.records import parse_json

Item = TypeVar("Item")

HUB_SECONDS = 10.0
"""How long the Hub may take to answer at all; a machine without a network is told so at once."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""In order of preference; an index names the shards."""
SETTINGS = (
    *("config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("spiece.model", "tokenizer.model"),
)
PREPARES = {
    "AutoImageProcessor": ("preprocessor_config.json", "processor_config.json"),
    "AutoFeatureExtractor": ("preprocessor_config.json", "processor_config.json"),
    "AutoTokenizer": ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model"),
}
"""Files of which one must be there: where there is none, transformers makes up an empty tokeniser."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A folder in the Hugging Face layout, and what to call what lies in it."""

    folder: Path
    name: str
    revision: str


def find(model: str, *, kind: str, revision: str | None = None) -> Source:
    """The folder of a model: a local one, else the Hub's, from its cache if it is there and downloaded if not."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _local(folder, revision)
    if folder.is_absolute() or model.startswith((".", "~")):
        raise EncoderError(
            f"{model}: there is no such folder; a local model is given by the folder with its config.json"
        )
    cached = _cached(model, revision)
    if cached is not None:
        return cached
    return _downloaded(model, kind=kind, revision=revision)


def require_transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise EncoderError(needs("transformers", "a pretrained encoder")) from error
    return transformers


def load_part(
    source: Source, part: str | None, *, reads: tuple[str, ...], noun: str, unused: str | None = None
) -> tuple[Any, bool]:
    """The part of a model that encodes one kind of content, frozen, in float32; and whether its pooler can be used.

    Of a model for pictures and texts that is the attribute `part`, of an encoder-decoder the encoder. It must read one
    of `reads`, as transformers calls its input. A part that would run on random weights is an error; weights whose
    names end in `unused` may be missing, since nothing reads them here.
    """
    transformers = require_transformers()
    with quiet(), _explained(source, "its weights cannot be loaded"):
        model, report = transformers.AutoModel.from_pretrained(
            source.folder, local_files_only=True, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
        )
    model.eval().requires_grad_(False)
    found = model if part is None else getattr(model, part, model)
    if getattr(getattr(found, "config", None), "is_encoder_decoder", False):
        found = found.get_encoder()
    given = getattr(found, "main_input_name", "nothing that is known")
    if given not in reads:
        raise EncoderError(
            f"{source.name} is a {type(model).__name__}, which reads {given}: it is no encoder of {noun}"
        )
    (prefix,) = (name for name, module in model.named_modules() if module is found)
    missing = [name for name in sorted(report["missing_keys"]) if name.startswith(prefix)]
    missing = [name for name in missing if unused is None or not name.endswith(unused)]
    random = [name for name in missing if "pooler" not in name]
    if random:
        shown = ", ".join(random[:3]) + (", ..." if len(random) > 3 else "")
        raise EncoderError(f"{source.name}: the files in {source.folder} lack {len(random)} weights ({shown})")
    return found, not missing


def load_processor(source: Source, loader: str, options: Mapping[str, Any]) -> Any:
    """What prepares the input: AutoImageProcessor, AutoFeatureExtractor or AutoTokenizer, from the same folder."""
    transformers = require_transformers()
    if not any((source.folder / name).is_file() for name in PREPARES[loader]):
        raise EncoderError(f"{source.name}: none of {', '.join(PREPARES[loader])} in {source.folder}; input needs it")
    with quiet(), _explained(source, f"{loader} cannot be loaded"):
        return getattr(transformers, loader).from_pretrained(
            source.folder, local_files_only=True, trust_remote_code=False, **options
        )


def weight_hash(part: nn.Module, folder: Path, *options: object) -> str:
    """SHA-256 of the weights in use, of the files that say how input is prepared, and of our own options."""
    digest = hashlib.sha256()
    for name, tensor in sorted(part.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    for file in sorted(folder / name for name in SETTINGS):
        if file.is_file():
            digest.update(f"{file.name};".encode() + file.read_bytes())
    digest.update(repr(options).encode())
    return digest.hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """transformers without its progress bars and remarks; errors are raised all the same."""
    logging = require_transformers().utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


# -- where a model lies ------------------------------------------------------------------------------------------------


def _local(folder: Path, revision: str | None) -> Source:
    if revision is not None:
        raise EncoderError(f"{folder} is a folder, it has no revision {revision!r}: revisions belong to the Hub")
    absent = _absent(folder)
    if absent:
        raise EncoderError(f"{folder}: no {absent} in it; it must be a model as save_pretrained() writes it")
    return Source(folder=folder, name=folder.resolve().name, revision=LOCAL)


def _cached(model: str, revision: str | None) -> Source | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(model, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise EncoderError(f"{model!r} is neither a folder nor a name that the Hub could know: {error}") from error
    return None if _absent(folder) else Source(folder=folder, name=model, revision=folder.name)


def _downloaded(model: str, *, kind: str, revision: str | None) -> Source:
    from huggingface_hub import HfApi, constants, snapshot_download

    try:
        info = HfApi().model_info(model, revision=revision, timeout=HUB_SECONDS)
        files = _wanted([file.rfilename for file in info.siblings or []])
        folder = Path(snapshot_download(model, revision=info.sha, allow_patterns=files))
    except Exception as error:  # whatever it was, it is said, and why the weights matter
        raise EncoderError(
            f"{model}: its weights are not here. Looked for a folder of that name, in the cache "
            f"{constants.HF_HUB_CACHE}, and on the Hub ({_reason(error)}). Give the path of a folder that holds the "
            f"model. Encoders that need no download: {INSTEAD[kind]}"
        ) from error
    absent = _absent(folder)
    if absent:
        raise EncoderError(f"{model}: no {absent} among its files on the Hub; instead: {INSTEAD[kind]}")
    return Source(folder=folder, name=model, revision=folder.name)


def _wanted(files: list[str]) -> list[str]:
    """Settings, and weights in the best form that there is; not the copies for other frameworks."""
    best = next((name for name in WEIGHTS if name in files), None)
    if best is None or not best.endswith(".index.json"):
        return [name for name in files if name in SETTINGS or name == best]
    stem, suffix = best.removesuffix(".index.json").rsplit(".", 1)
    shards = [name for name in files if name.startswith(f"{stem}-") and name.endswith(f".{suffix}")]
    return [name for name in files if name in SETTINGS or name == best] + shards


def _absent(folder: Path) -> str:
    """What a model's folder lacks, in words; nothing if it is whole."""
    if not (folder / "config.json").is_file():
        return "config.json"
    best = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if best is None:
        return "weights (model.safetensors or pytorch_model.bin)"
    if best.suffix != ".json":
        return ""
    try:  # an index names the files of the weights, each in its own folder
        shards = sorted({Path(name).name for name in parse_json(best.read_bytes())["weight_map"].values()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EncoderError(f"{best}: not an index of weights: {error}; download the model again") from error
    return next((shard for shard in shards if not (folder / shard).is_file()), "")


def _reason(error: Exception) -> str:
    """What went wrong inside a library, on one line."""
    return f"{type(error).__name__}: {(str(error).strip() or repr(error)).splitlines()[0]}"


@contextmanager
def _explained(source: Source, what: str) -> Iterator[None]:
    try:
        yield
    except EncoderError:
        raise
    except Exception as error:
        raise EncoderError(f"{source.name}: {what} from {source.folder}: {_reason(error)}") from error
