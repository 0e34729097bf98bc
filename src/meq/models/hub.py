"""Saving and loading in the Hugging Face layout: `config.json` and `model.safetensors`, nothing that runs code.

A saved model lies in a folder of this machine, or on the Hugging Face Hub.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from huggingface_hub import ModelHubMixin, constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from meq.core.backward import Backward
from meq.core.solvers import Solver
from meq.models.fitting import built_for, read_config, read_header
from meq.models.quantise import CONFIG_KEY
from meq.records import sync
from meq.version import __version__

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
STAGING = ".saving-"
"""What the folder of a save under way is called; one that a killed process left is removed by the next save."""
ANSWER_SECONDS = 5.0
"""How long the Hub may take to say whether it knows a name; what it knows may take longer to download."""
SHOWN = 5
"""How many names beside a misspelt one are shown."""
Model = TypeVar("Model", bound="Saveable")


class Saveable(nn.Module, ModelHubMixin, library_name="meq", license="apache-2.0"):
    """`save_pretrained`, `from_pretrained` and `push_to_hub` for a model whose options are plain values.

    The mixin records the constructor's arguments; the config wraps them with the class name and the version. Loading
    through a base class returns whatever class was saved.
    """

    int8: int | None = None
    """Of a model that `meq.quantise` made: the least number of weights that an int8 layer has; None for a float one."""

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
            for left in folder.glob(f"{STAGING}*"):
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=STAGING) as staging:
                super().save_pretrained(staging, model_card_kwargs=model_card_kwargs)
                files = sorted(Path(staging).iterdir())
                for file in files:  # every file is on disk before the first one replaces what was there
                    sync(file)
                for file in files:
                    os.replace(file, folder / file.name)
                sync(folder)
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
        try:
            model.run_by_config(config)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{config['file']}: {error!s:.300}") from error
        return model

    def to_config(self) -> dict[str, Any]:
        """Class name, version and options: all that loading needs besides the weights."""
        options = dict(self._hub_mixin_config or {})  # type: ignore[arg-type]
        config = {"model": type(self).__name__, "meq_version": __version__, "options": options}
        return config if self.int8 is None else {**config, CONFIG_KEY: {"least_weights": self.int8}}

    def run_by_config(self, config: Mapping[str, Any]) -> None:
        """Set what a config says besides the options of the constructor; here, nothing."""

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


def missing_here(place: str | Path, what: str) -> str | None:
    """What to say of a name that is no folder, unless it could be one of the Hub: `owner/name` with no such owner here.

    `what` says in a word what was looked for, such as a model.
    """
    if not isinstance(place, str | Path) or not str(place):
        return f"a {what} is given by its folder, or by owner/name on the Hub, got {place!r:.80}"
    path = Path(place)
    if path.is_file():
        return f"{place} is a file: a {what} is given by the folder it lies in"
    looks_local = path.is_absolute() or str(place).startswith((".", "~")) or "\\" in str(place)
    if path.exists() or (not looks_local and len(path.parts) == 2 and not path.parent.is_dir()):
        return None
    if not path.parent.is_dir():
        return f"there is no {what} {place}: {path.parent} is not there either"
    names = sorted(each.name for each in path.parent.iterdir() if each.is_dir() and not each.name.startswith("."))
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    guess = f"did you mean {close[0]!r}? " if close else ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    beside = f"{', '.join(names[:SHOWN]) or 'none'}{more}"
    return f"there is no {what} {place}: {guess}Folders beside it: {beside}. A name of the Hub is owner/name"


def fetched(name: str, files: Sequence[str], *, what: str, **where: Any) -> list[Path]:
    """Files of a repository, from the Hub or from what it left in the cache. `where` is that of `hf_hub_download`.

    One short question comes first: `hf_hub_download` would ask a Hub out of reach for half a minute.
    """
    if not where.get("local_files_only"):
        where = _reachable(name, files[0], what, where)
    try:
        return [Path(hf_hub_download(repo_id=name, filename=file, **where)) for file in files]
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise FileNotFoundError(_unknown(name, what, error)) from error


def _reachable(name: str, file: str, what: str, where: dict[str, Any]) -> dict[str, Any]:
    """`where`, changed to the cache alone if the Hub is out of reach; an error where the Hub knows no such name."""
    try:
        url = hf_hub_url(name, file, revision=where.get("revision"))
        get_hf_file_metadata(url, token=where.get("token"), timeout=ANSWER_SECONDS)
    except (HfHubHTTPError, HFValidationError) as error:
        raise FileNotFoundError(_unknown(name, what, error)) from error
    except Exception as error:  # whatever the HTTP library in use calls it: no network, no answer in time
        cached = {**where, "local_files_only": True, "force_download": False}
        try:
            hf_hub_download(repo_id=name, filename=file, **cached)
        except OSError:
            raise FileNotFoundError(_unknown(name, what, error)) from error
        return cached
    return where


def _unknown(name: str, what: str, error: BaseException) -> str:
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    return (
        f"there is no folder {name} here, nothing of it in the cache, and {constants.ENDPOINT} gave no {what} of "
        f"that name: {type(error).__name__}: {reason:.200}"
    )
