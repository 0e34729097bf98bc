"""Saving and loading in the Hugging Face layout: `config.json` and `model.safetensors`, nothing that runs code."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import ModelHubMixin, hf_hub_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from meq.core.options import nearest
from meq.version import __version__

CONFIG, WEIGHTS = "config.json", "model.safetensors"
Model = TypeVar("Model", bound="Saveable")


class Saveable(nn.Module, ModelHubMixin, library_name="meq", license="apache-2.0"):
    """`save_pretrained`, `from_pretrained` and `push_to_hub` for a model whose options are plain values.

    The mixin records the constructor's arguments; the config wraps them with the class name and the version. Loading
    through a base class returns whatever class was saved.
    """

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write the model's folder; the mixin's arguments. Files appear whole, or what was there before stays.

        The config is the model's own, so `config` is accepted for the mixin's sake and not used.
        """
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as staging:
            super().save_pretrained(staging, model_card_kwargs=model_card_kwargs)
            for file in sorted(Path(staging).iterdir()):
                os.replace(file, folder / file.name)
        return self.push_to_hub(repo_id or folder.name, **push_to_hub_kwargs) if push_to_hub else None

    def to_config(self) -> dict[str, Any]:
        """Class name, version and options: all that loading needs besides the weights."""
        options = dict(self._hub_mixin_config or {})  # type: ignore[arg-type]
        return {"model": type(self).__name__, "meq_version": __version__, "options": options}

    def _save_pretrained(self, save_directory: Path) -> None:
        weights = {name: x.detach().contiguous().cpu() for name, x in self.state_dict().items()}
        save_file(weights, save_directory / WEIGHTS, metadata={"format": "pt"})
        (save_directory / CONFIG).write_text(json.dumps(self.to_config(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def _from_pretrained(cls: type[Model], *, model_id: str, **rest: Any) -> Model:
        where = {key: rest.pop(key) for key in ("revision", "cache_dir", "force_download", "local_files_only", "token")}
        config = json.loads(_file(model_id, CONFIG, where).read_text(encoding="utf-8"))
        model = _class_named(config, cls, model_id)(**{**config["options"], **rest})
        weights = _file(model_id, WEIGHTS, where)
        try:
            model.load_state_dict(load_file(weights))
        except SafetensorError as error:
            raise ValueError(f"{weights} is damaged or not a safetensors file: {error}") from error
        return model


def _file(model_id: str, name: str, where: dict[str, Any]) -> Path:
    """A file of a saved model, from a local folder or the Hub."""
    if not Path(model_id).is_dir():
        return Path(hf_hub_download(repo_id=model_id, filename=name, **where))
    path = Path(model_id) / name
    if not path.is_file():
        raise FileNotFoundError(f"{model_id} has no {name}: it is not a folder written by save_pretrained")
    return path


def _class_named(config: dict[str, Any], cls: type[Model], model_id: str) -> type[Model]:
    known = {each.__name__: each for each in (cls, *_descendants(cls))}
    name = config.get("model")
    if not isinstance(name, str) or "options" not in config:
        raise ValueError(f"{model_id}/{CONFIG} does not name a model and its options: it was not written by meq")
    if name not in known:
        raise ValueError(
            f"{model_id} holds a {name}, which {cls.__name__}.from_pretrained does not load: {nearest(name, known)}"
        )
    return known[name]


def _descendants(cls: type[Model]) -> list[type[Model]]:
    return [each for child in cls.__subclasses__() for each in (child, *_descendants(child))]
