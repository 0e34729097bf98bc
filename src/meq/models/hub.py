"""Saving and loading in the Hugging Face layout: `config.json` and `model.safetensors`, nothing that runs code."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import ModelHubMixin
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from meq.core.backward import Backward
from meq.core.solvers import Solver
from meq.models.find import fetched, missing_here
from meq.models.fitting import built_for, read_config, read_header
from meq.version import __version__

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
STAGING = ".saving-"
"""What the folder of a save under way is called; one that a killed process left is removed by the next save."""
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_leftovers(folder)
            with tempfile.TemporaryDirectory(dir=folder, prefix=STAGING) as staging:
                super().save_pretrained(staging, model_card_kwargs=model_card_kwargs)
                _move_whole(Path(staging), folder)
        except (OSError, SafetensorError) as error:
            raise _unsaved(folder, error) from error
        return self.push_to_hub(repo_id or folder.name, **push_to_hub_kwargs) if push_to_hub else None

    @classmethod
    def from_pretrained(
        cls: type[Model],
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        **options: Any,
    ) -> Model:
        """The model of a folder or of a repository `owner/name` of the Hub; `options` replace those it was saved with.

        The config is held against the names and shapes of the stored tensors before anything of its size is made.
        """
        where = {
            "force_download": force_download,
            "token": token,
            "cache_dir": cache_dir,
            "local_files_only": local_files_only,
            "revision": revision,
        }
        config = read_config(_file(pretrained_model_name_or_path, CONFIG, where))
        weights_file = _file(pretrained_model_name_or_path, WEIGHTS, where)
        header = read_header(weights_file)
        build = built_for(cls, config, header, changes=options, source=str(pretrained_model_name_or_path))
        model: Model = build()
        model.load_state_dict(load_file(weights_file))
        return model

    def to_config(self) -> dict[str, Any]:
        """Class name, version and options: all that loading needs besides the weights."""
        options = dict(self._hub_mixin_config or {})  # type: ignore[arg-type]
        return {"model": type(self).__name__, "meq_version": __version__, "options": options}

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The constructor's arguments, from the options of a config."""
        return dict(options)

    @classmethod
    def _encode_arg(cls, arg: Any) -> Any:
        """What the mixin records of an argument; solvers and backwards are written by `to_config`, from the model."""
        return None if isinstance(arg, Solver | Backward | type) else super()._encode_arg(arg)

    def _save_pretrained(self, save_directory: Path) -> None:
        config = json.dumps(self.to_config(), indent=2) + "\n"
        weights = {name: x.detach().contiguous().cpu() for name, x in self.state_dict().items()}
        save_file(weights, save_directory / WEIGHTS, metadata={"format": "pt"})
        (save_directory / CONFIG).write_text(config, encoding="utf-8")
        shutil.copymode(save_directory / CONFIG, save_directory / WEIGHTS)  # safetensors lets nobody else read


def _file(place: str | Path, name: str, where: dict[str, Any]) -> Path:
    """A file of a saved model, from a local folder or the Hub."""
    if words := missing_here(place, "model"):
        raise FileNotFoundError(words)
    if not Path(place).is_dir():
        return fetched(str(place), [name], what="model", **where)[0]
    path = Path(place) / name
    if not path.is_file():
        raise FileNotFoundError(f"{place} has no {name}: it is not a folder written by save_pretrained")
    return path


def _move_whole(staging: Path, folder: Path) -> None:
    """Every file on disk before the first one replaces what was there."""
    files = sorted(staging.iterdir())
    for file in files:
        _flush(file)
    for file in files:
        os.replace(file, folder / file.name)
    _flush(folder)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(f"{STAGING}*"):
        shutil.rmtree(path, ignore_errors=True)


def _unsaved(folder: Path, error: OSError | SafetensorError) -> OSError:
    """One kind of error, with its number, whoever was writing: safetensors knows of errors only as text."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := re.search(r"os error (\d+)", str(error))):
        number = int(found[1])
    reason = os.strerror(number) if number else str(error)
    room = " Make room and save again." if number in (errno.ENOSPC, errno.EDQUOT) else ""
    return OSError(
        number or errno.EIO, f"the model could not be saved to {folder}: {reason}. What was there before stays.{room}"
    )
