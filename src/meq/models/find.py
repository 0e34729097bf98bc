"""Where a saved model lies: in a folder of this machine, or on the Hugging Face Hub."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

ANSWER_SECONDS = 5.0
"""How long the Hub may take to say whether it knows a name; what it knows may take longer to download."""
SHOWN = 5
"""How many names beside a misspelt one are shown."""


def missing_here(place: str | Path, what: str) -> str | None:
    """What to say of a name that is no folder, unless it could be one of the Hub: `owner/name` with no such owner here.

    `what` says in a word what was looked for, such as a model.
    """
    if not isinstance(place, str | Path) or not str(place):
        return f"a {what} is given by its folder, or by owner/name on the Hub, got {place!r:.80}"
    path = Path(place)
    if path.is_file():
        return f"{place} is a file: a {what} is given by the folder it lies in"
    if path.exists() or _could_be_on_the_hub(path, str(place)):
        return None
    return f"there is no {what} {place}: {_beside(path)}"


def fetched(name: str, files: Sequence[str], *, what: str, **where: Any) -> list[Path]:
    """Files of a repository, from the Hub or from what it left in the cache. `where` is that of `hf_hub_download`.

    One short question comes first: `hf_hub_download` would ask a Hub out of reach for half a minute.
    """
    where = {**where, **_only_cached(name, files[0], what, where)}
    try:
        return [Path(hf_hub_download(repo_id=name, filename=file, **where)) for file in files]
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise FileNotFoundError(_unknown(name, what, error)) from error


def _only_cached(name: str, file: str, what: str, where: dict[str, Any]) -> dict[str, bool]:
    """Whether only the cache can be asked, since the Hub is out of reach; an error where the Hub knows no such name."""
    if where.get("local_files_only"):
        return {}
    try:
        url = hf_hub_url(name, file, revision=where.get("revision"))
        get_hf_file_metadata(url, token=where.get("token"), timeout=ANSWER_SECONDS)
    except (HfHubHTTPError, HFValidationError) as error:
        raise FileNotFoundError(_unknown(name, what, error)) from error
    except Exception as error:  # whatever the HTTP library in use calls it: no network, no answer in time
        try:
            cached = {key: value for key, value in where.items() if key != "force_download"}
            hf_hub_download(repo_id=name, filename=file, **{**cached, "local_files_only": True})
        except OSError:
            raise FileNotFoundError(_unknown(name, what, error)) from error
        return {"local_files_only": True, "force_download": False}
    return {}


def _could_be_on_the_hub(path: Path, name: str) -> bool:
    looks_local = path.is_absolute() or name.startswith((".", "~")) or "\\" in name
    return not looks_local and len(path.parts) == 2 and not path.parent.is_dir()


def _beside(path: Path) -> str:
    if not path.parent.is_dir():
        return f"{path.parent} is not there either"
    names = sorted(each.name for each in path.parent.iterdir() if each.is_dir() and not each.name.startswith("."))
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
    guess = f"did you mean {close[0]!r}? " if close else ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{guess}Folders beside it: {', '.join(names[:SHOWN]) or 'none'}{more}. A name of the Hub is owner/name"


def _unknown(name: str, what: str, error: BaseException) -> str:
    reason = (str(error).strip() or repr(error)).splitlines()[0]
    return (
        f"there is no folder {name} here, nothing of it in the cache, and {constants.ENDPOINT} gave no {what} of "
        f"that name: {type(error).__name__}: {reason:.200}"
    )
