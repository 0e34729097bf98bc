"""What the columns of a table mean: paths of pictures or sounds, texts, numbers. One class per kind, see COLUMN_KINDS.

A column, or several as one, becomes a modality. An empty cell, null or NaN is a missing modality. Everything else that
cannot be used is a `BadRowError`.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from meq.data.content import PictureFile, SoundFile
from meq.data.contract import Modality, ModalityKind, features
from meq.data.files import BadRowError, text_of
from meq.data.findings import DataError
from meq.records import JsonError, parse_json

URL = re.compile(r"^([a-z][a-z0-9+.-]+://|data:)", re.IGNORECASE)
ABSOLUTE = re.compile(r"[/\\]|[a-z]:[/\\]", re.IGNORECASE)
"""On any system: a table that is refused on one must not be read on another."""
MISSED = 20
MODULE_NAMES = """
    T_destination _apply _call_impl _compiled_call_impl _get_backward_hooks _get_backward_pre_hooks _get_name
    _key_to_attr _load_from_state_dict _maybe_warn_non_full_backward_hook _named_members
    _register_load_state_dict_pre_hook _register_state_dict_hook _replicate_for_data_parallel
    _save_to_state_dict _slow_forward _version _wrapped_call_impl add_module apply bfloat16 buffers
    call_super_init children clear compile copy cpu cuda double dump_patches eval extra_repr float forward
    fromkeys get get_buffer get_extra_state get_parameter get_submodule half ipu items keys load_state_dict
    modules mtia named_buffers named_children named_modules named_parameters parameters pop popitem
    register_backward_hook register_buffer register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule setdefault share_memory state_dict
    to to_empty train type update values xpu zero_grad
"""
"""What `torch.nn.ModuleDict` and `ParameterDict` call their own parts: no modality can have such a name. Written out,
since importing torch to look takes seconds; a test compares."""
NO_NUMBERS = ("", "nan", "null", "none")
"""How a text says that there are no numbers here."""


def is_empty(cell: Any) -> bool:
    """Nothing, null, NaN, or a text of nothing but spaces."""
    return (
        cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and math.isnan(cell))
    )


def plain_text(cell: Any, column: str, kind: str) -> str:
    """The cell as a text; numbers and truth values are written as JSON writes them, 2.0 as 2."""
    if isinstance(cell, str):
        return text_of({column: cell}, column).strip()
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, (list, dict, np.ndarray)):
        raise BadRowError(kind, f"column {column!r} holds a {_kind_of(cell)}, not one value")
    return str(cell)


class ModalityColumn(ABC):
    """The columns of one modality: what is kept of their cells, and the content it becomes when it is asked for."""

    kind: ClassVar[ModalityKind]
    """What the modality is to encoders and models."""
    takes_patterns: ClassVar[bool] = False
    """Whether a pattern such as `audio_*` joins several columns to one modality."""

    def __init__(self, name: str, columns: Sequence[str], *, root: Path, width: int | None = None) -> None:
        """`root` is where paths start; `width`, where it is known already, how many numbers a token has."""
        self.name, self.columns, self.root, self.width = name, tuple(columns), root, width

    @abstractmethod
    def keep(self, cells: Sequence[Any]) -> Any:
        """What to keep of a row's cells; None if the modality is missing, BadRowError if they cannot be used."""

    @abstractmethod
    def content(self, kept: Any) -> Any:
        """What an encoder is given, or an array of numbers."""

    def settle(self, kept: Sequence[Any]) -> Modality:
        """What the modality is, once every row was seen."""
        return Modality(kind=self.kind)

    def wrong(self, kept: Any) -> str | None:
        """What is wrong with a row now that the others are known."""
        return None


class TextColumn(ModalityColumn):
    """Texts as they stand, but for spaces around them."""

    kind = "text"

    def keep(self, cells: Sequence[Any]) -> str | None:
        return None if is_empty(cells[0]) else plain_text(cells[0], self.columns[0], "wrong text")

    def content(self, kept: str) -> str:
        return kept


class FileColumn(ModalityColumn):
    """Paths of files, relative to the table's root. A file must be there; it is not opened."""

    noun: ClassVar[str]
    opened_by: ClassVar[type[PictureFile] | type[SoundFile]]

    @cached_property
    def files(self) -> FileLookup:
        return FileLookup(self.root, noun=self.noun)

    def keep(self, cells: Sequence[Any]) -> str | None:
        if is_empty(cells[0]):
            return None
        if not isinstance(cells[0], str):
            raise BadRowError(
                "wrong path", f"column {self.columns[0]!r} holds a {_kind_of(cells[0])}, not a {self.noun}'s path"
            )
        found = self.files.find(cells[0].strip())
        if isinstance(found, BadRowError):
            raise BadRowError(found.kind, f"column {self.columns[0]!r}: {found}")
        return found

    def content(self, kept: str) -> PictureFile | SoundFile:
        return self.opened_by(self.root / kept, self.root)


class ImageColumn(FileColumn):
    """Pictures by their paths."""

    kind, noun, opened_by = "image", "picture", PictureFile


class AudioColumn(FileColumn):
    """Sounds by their paths."""

    kind, noun, opened_by = "audio", "sound", SoundFile


class VectorColumn(ModalityColumn):
    """Numbers: a list, a list of lists (tokens), a text of numbers, or one number in each of several columns."""

    kind, takes_patterns = "features", True

    def __init__(self, name: str, columns: Sequence[str], *, root: Path, width: int | None = None) -> None:
        super().__init__(name, columns, root=root, width=width)
        self.expected = "where most rows hold" if width is None else "the model was trained on"

    def keep(self, cells: Sequence[Any]) -> np.ndarray[Any, Any] | None:
        if len(cells) > 1:
            return self._joined(cells)
        numbers = read_numbers(cells[0], self.columns[0])
        return None if numbers is None else _finite(numbers, self.columns[0])

    def content(self, kept: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return kept.copy()  # a copy: what a caller does to an example stays with the caller

    def settle(self, kept: Sequence[Any]) -> Modality:
        """The width that is known, or that most rows have; with as many of two widths, the larger."""
        if self.width is None:
            counts = Counter(x.shape[-1] for x in kept)
            self.width = max(counts, key=lambda width: (counts[width], width))
        return features(self.width)

    def wrong(self, kept: np.ndarray[Any, Any]) -> str | None:
        width = kept.shape[-1]
        if width == self.width:
            return None
        return f"column {self.columns[0]!r} holds {width} numbers, {self.expected} {self.width}"

    def _joined(self, cells: Sequence[Any]) -> np.ndarray[Any, Any] | None:
        try:  # the usual case, without a look at each cell
            numbers = _to_float32([float(cell) for cell in cells])
            if np.isfinite(numbers).all():
                return numbers
        except (ValueError, TypeError, OverflowError):
            pass
        parts = [read_numbers(cell, column) for cell, column in zip(cells, self.columns, strict=True)]
        if all(part is None for part in parts):
            return None
        for part, column in zip(parts, self.columns, strict=True):
            if part is None:
                raise BadRowError("not finite", f"column {column!r} is empty, others of {self.name!r} hold numbers")
            if part.shape != (1,):
                raise BadRowError("wrong numbers", f"column {column!r} holds {part.size} numbers, one is needed")
            _finite(part, column)
        return np.concatenate([part for part in parts if part is not None])


COLUMN_KINDS: Mapping[str, type[ModalityColumn]] = {
    "images": ImageColumn,
    "texts": TextColumn,
    "audios": AudioColumn,
    "vectors": VectorColumn,
}
"""By the option of `meq.data.table`, and the field of `DataRequest`, that names such columns."""


class FileLookup:
    """The folder below which all files of a column lie; every folder in it is listed once, when it is first needed."""

    def __init__(self, root: Path, *, noun: str) -> None:
        self.root, self.noun = root, noun
        self.true_root = root.resolve()
        self.roots = (os.path.abspath(root), str(self.true_root))
        self.any_found = False
        self.missed: list[str] = []
        """The first names that could not be used, for advice on what is wrong with all of them."""
        self._folders: dict[str, dict[str, bool | None] | BadRowError] = {}
        self._found: dict[str, str | BadRowError] = {}

    def find(self, name: str) -> str | BadRowError:
        """The name in its plain form, `a.jpg` for `./a.jpg`, or why it cannot be used; asked again, it is known.

        Two rows hold the same file if the plain forms are the same.
        """
        if name not in self._found:
            try:
                self._found[name] = self._find(name)
                self.any_found = True
            except BadRowError as bad:
                self._found[name] = bad.with_traceback(None)
                if len(self.missed) < MISSED:
                    self.missed.append(name)
        return self._found[name]

    def _find(self, name: str) -> str:
        name = self._relative(name)
        self._refuse(name)
        path = posixpath.normpath(name)
        parent, file = posixpath.split(path)
        folder = self._folder(parent)
        if file not in folder:
            hint = "; write paths with /" if "\\" in name else ""
            raise BadRowError(f"missing {self.noun}", f"there is no {self.noun} {name!r} below {self.root}{hint}")
        is_symlink = folder[file]
        if is_symlink is None:
            raise BadRowError("wrong path", f"{name!r} is a pipe, a socket or a device, not a {self.noun}")
        if is_symlink:
            self._check_inside(path)
            if not (self.root / path).is_file():
                raise BadRowError(f"missing {self.noun}", f"{path!r} is a symlink that leads to no file")
        return path

    def _relative(self, name: str) -> str:
        """An absolute path below the root as the relative one; any other name as it is."""
        if not os.path.isabs(name) or ".." in re.split(r"[/\\]", name):
            return name
        plain = os.path.normpath(name)
        for root in self.roots:
            if plain.startswith(root.rstrip(os.sep) + os.sep):
                return os.path.relpath(plain, root).replace(os.sep, "/")
        return name

    def _refuse(self, name: str) -> None:
        """An error for names that are never looked for: addresses, and paths that leave the root."""
        if URL.match(name):
            raise BadRowError(
                "wrong path", f"{name[:80]!r} is an address; download the {self.noun} and give the file's path"
            )
        if ABSOLUTE.match(name):
            raise BadRowError(
                "path outside",
                f"{name!r} is an absolute path outside of {self.root}; set root to a folder that holds it",
            )
        if ".." in name and ".." in re.split(r"[/\\]", name):
            raise BadRowError(
                "path outside", f"{name!r} goes up with '..', which is not followed; set root to a folder above"
            )
        if "\0" in name:
            raise BadRowError("wrong path", f"{name!r} is no file name")

    def _folder(self, name: str) -> dict[str, bool | None]:
        """The files of a folder, each with whether it is a symlink; none without a folder.

        None for pipes, sockets and devices, which are never opened.
        """
        if name not in self._folders:
            try:
                self._folders[name] = self._list(name)
            except BadRowError as bad:
                self._folders[name] = bad.with_traceback(None)
        found = self._folders[name]
        if isinstance(found, BadRowError):
            raise BadRowError(found.kind, str(found))
        return found

    def _list(self, name: str) -> dict[str, bool | None]:
        self._check_inside(name)
        try:
            with os.scandir(self.root / name) as entries:
                files = [entry for entry in entries if not entry.is_dir(follow_symlinks=False)]
                return {
                    entry.name: True if entry.is_symlink() else False if entry.is_file(follow_symlinks=False) else None
                    for entry in files
                }
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise BadRowError(
                f"missing {self.noun}", f"the folder {name!r} cannot be read: {error.strerror}"
            ) from error

    def _check_inside(self, name: str) -> None:
        try:
            inside = (self.root / name).resolve().is_relative_to(self.true_root)
        except (OSError, RuntimeError):  # a circle of symlinks leads nowhere
            inside = False
        if not inside:
            raise BadRowError(
                "path outside", f"{name!r} is a symlink that leads outside of {self.root}, and is not followed"
            )


def read_numbers(cell: Any, column: str) -> np.ndarray[Any, Any] | None:
    """Numbers as a vector (W) or as tokens (N W); None where there are none."""
    if isinstance(cell, str):
        if cell.strip().lower() in NO_NUMBERS:
            return None
        cell = _parse_numbers(cell.strip(), column)
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if isinstance(cell, dict):
        raise BadRowError("wrong numbers", f"column {column!r} holds an object, not numbers")
    try:
        numbers = np.atleast_1d(_to_float32(cell))
    except (ValueError, TypeError, OverflowError) as error:
        ragged = "inhomogeneous" in str(error)
        trouble = "lists of different lengths" if ragged else f"something that is no number ({_short(cell)})"
        raise BadRowError("wrong width" if ragged else "wrong numbers", f"column {column!r} holds {trouble}") from error
    if numbers.ndim > 2:
        raise BadRowError(
            "wrong numbers", f"column {column!r} holds {numbers.ndim} levels of lists, at most 2 are read"
        )
    return numbers if numbers.size else None


def modality_named(column: str) -> str:
    """The name of a column's modality: the column's, without pattern marks and as a model can use it."""
    name = re.sub(r"[*?\[\]!]", "", column)
    name = (name if name == column else name.rstrip("_-. ")).replace(".", "_")
    if not name:
        raise DataError(f"{column!r} leaves no name for a modality; rename the columns so that they begin alike")
    taken = name in MODULE_NAMES.split() or (name.startswith("__") and name.endswith("__"))
    return f"{name}_" if taken else name


def _parse_numbers(text: str, column: str) -> Any:
    """A JSON list, or numbers separated by commas, semicolons or spaces, in brackets or not, as numpy prints them."""
    if text.startswith("["):
        try:
            return parse_json(text, constants=True)
        except JsonError:
            if text.count("[") > 1:
                raise BadRowError(
                    "wrong numbers", f"column {column!r} holds a list that is no JSON ({_short(text)})"
                ) from None
            text = text.removeprefix("[").removesuffix("]")
    parts = re.split(r"[\s,;]+", text.strip())
    try:
        return [float(part) for part in parts if part]
    except ValueError as error:
        raise BadRowError(
            "wrong numbers", f"column {column!r} holds something that is no number ({_short(text)})"
        ) from error


def _to_float32(cell: Any) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is reported as such
        return np.asarray(cell, dtype=np.float32)


def _finite(numbers: np.ndarray[Any, Any], column: str) -> np.ndarray[Any, Any]:
    finite = np.isfinite(numbers)
    if finite.all():
        return numbers
    at = int(np.flatnonzero(~finite)[0])
    message = f"column {column!r} holds {numbers.ravel()[at]} at place {at + 1} of its {numbers.size} numbers"
    raise BadRowError("not finite", message)


def _kind_of(cell: Any) -> str:
    names = {dict: "object", list: "list", np.ndarray: "list", bool: "truth value", int: "number", float: "number"}
    return names.get(type(cell), type(cell).__name__)


def _short(cell: Any) -> str:
    text = cell if isinstance(cell, str) else str(cell)
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
