"""What to read, as people ask for it: a data set by name, or a table of theirs with its columns.

The data sets stand in DATA_SETS. One more is a function that returns a `DataSet`, and a name:

    @register_data_set("my-set", summary="what it is", metric="accuracy")
    def my_set(root: Path, *, findings: Findings | None = None, seed: int = 0) -> DataSet: ...
"""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from meq.data.findings import DataError, Findings
from meq.data.table_files import is_table
from meq.options import nearest
from meq.records import SINCE, JsonError, parse_json
from meq.registry import Registry, imported

if TYPE_CHECKING:
    from meq.data.contract import DataSet

Reader = TypeVar("Reader", bound="Callable[..., DataSet]")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A data set one can ask for by name."""

    source: str | Callable[..., DataSet]
    """The function that reads it, or "module:name" of one that is imported when it is needed."""
    summary: str
    metric: str
    embedded: bool = False
    """Comes with the package, or with one from PyPI: there is no folder to point at."""

    @property
    def read(self) -> Callable[..., DataSet]:
        """read(root, findings=..., **options), or read(**options) for a set that needs no folder."""
        found: Callable[..., DataSet] = imported(self.source)
        return found

    @property
    def options(self) -> list[str]:
        return [name for name in inspect.signature(self.read).parameters if name not in ("root", "findings")]


_SETS = (
    (
        "scenes",
        "scenes:scenes",
        "accuracy",
        True,
        "pictures of shapes, partly covered, and statements: true, false or open",
    ),
    (
        "duels",
        "duels:duels",
        "token accuracy",
        True,
        "cards and rules that ask two of each other: who wins, to any depth",
    ),
    ("relay", "duels:relay", "token accuracy", True, "cards and rules that ask one of each other: trails"),
    ("statements", "statements:statements", "accuracy", True, "grids of shapes and statements, already features"),
    ("snli-ve", "snli_ve:snli_ve", "accuracy", False, "SNLI-VE: does the picture entail the sentence?"),
    ("hateful-memes", "hateful_memes:hateful_memes", "auroc", False, "Hateful Memes: picture and text together"),
    ("vqa-v2", "vqa_v2:vqa_v2", "soft accuracy", False, "VQA v2: questions about pictures"),
    ("vcr", "vcr:vcr", "accuracy", False, "VCR: which of four answers, or of four rationales?"),
    ("mosei", "mosei:mosei", "Acc-7", False, "CMU-MOSEI: sentiment from video, audio and words"),
    ("cod10k", "cod10k:cod10k", "accuracy", False, "COD10K: is this animal hidden in the picture?"),
    ("easy-vqa", "easy_vqa:easy_vqa", "accuracy", True, "questions about a coloured shape (pip)"),
)
DATA_SETS: Registry[Entry] = Registry(
    "data set",
    {
        name: Entry(source=f"meq.data.{source}", summary=summary, metric=metric, embedded=embedded)
        for name, source, metric, embedded, summary in _SETS
    },
    error=DataError,
)


def register_data_set(name: str, *, summary: str, metric: str, embedded: bool = False) -> Callable[[Reader], Reader]:
    """A decorator that gives a reading function a name, under which it can be asked for wherever data sets are.

    `summary` and `metric` are what `meq data list` says of it. An `embedded` set is read without a folder, by
    read(**options), any other by read(root, findings=findings, **options).
    """

    def decorate(read: Reader) -> Reader:
        DATA_SETS.add(name, Entry(source=read, summary=summary, metric=metric, embedded=embedded))
        return read

    return decorate


def open_data(
    name: str, root: Path | str | None = None, *, findings: Findings | None = None, **options: Any
) -> DataSet:
    """The data set of that name, read from its folder; nothing is encoded and no picture is opened yet.

    `findings` decides what a bad row does: raise, which is the default, or be skipped and counted.
    """
    entry = DATA_SETS.get(name)
    for option in options:
        if option not in entry.options:
            raise DataError(f"the data set {name!r} has no option {option!r}: {nearest(option, entry.options)}")
    if entry.embedded:
        if root is not None:
            raise DataError(f"{name!r} is generated or installed, it has no folder; got {root}")
        return entry.read(**options)
    if root is None:
        raise DataError(f"{name!r} lies in a folder of yours: give its path (see: meq data list)")
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; {name!r} is read from the folder that holds its files")
    return entry.read(root, findings=findings if findings is not None else Findings(), **options)


COLUMNS = ("images", "texts", "audios", "vectors")
"""Columns of a table that are modalities, by kind: the keys of `meq.data.table_columns.COLUMN_KINDS`."""
PLACES = ("label", "split", "group")
"""Columns of a table that are no modality, besides the id."""


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """A data set before it is read."""

    data: str
    """A name that `meq data list` shows, or the path of a CSV, JSONL or Parquet file."""
    root: Path | None = None
    """The data set's folder; for a table the folder that the paths of its pictures and sounds start from."""
    images: Sequence[str] = ()
    """Column of picture paths; repeatable."""
    texts: Sequence[str] = ()
    """Column of texts; repeatable."""
    audios: Sequence[str] = ()
    """Column of paths of WAV files; repeatable."""
    vectors: Sequence[str] = ()
    """Column of numbers, or audio_*; repeatable."""
    label: str | None = None
    """Column of labels."""
    split: str | None = None
    """Column that says train, dev or test; else seeded fractions."""
    group: str | None = None
    """Column that must not be torn apart by splitting."""
    task: str | None = field(default=None, metadata=SINCE)
    """What a table's labels are: classes, labels (several, with | between them) or score (a number); by their look
    unless given."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the data set, or of `meq.data.table`."""

    def check(self) -> None:
        """An error for what can be known to be wrong before a file is opened: names, options, places."""
        if is_table(self.data):
            self._check_columns()
            given = (*COLUMNS, *PLACES, "path", "root", "findings")
            from meq.data.table import table

            check_option_values(self._table_options(), table, "a table", without=given)
        else:
            self._check_named()
            read = DATA_SETS.get(self.data).read
            check_option_values(self.options, read, f"the data set {self.data!r}", without=("root", "findings"))

    def open(self, findings: Findings | None = None) -> DataSet:
        """Read it; `findings` decides what a bad row does."""
        self.check()
        if not is_table(self.data):
            return open_data(self.data, self.root, findings=findings, **self.options)
        from meq.data.table import table

        columns: dict[str, Any] = {name: getattr(self, name) for name in (*COLUMNS, *PLACES)}
        return table(Path(self.data), **columns, root=self.root, findings=findings, **self._table_options())

    def _table_options(self) -> dict[str, Any]:
        """A column called 7 stays a name, although --set reads numbers where it can."""
        texts = ("id", "task", "separator", "delimiter")
        given = {
            name: str(value) if name in texts and isinstance(value, int | float) else value
            for name, value in self.options.items()
        }
        if self.task is None:
            return given
        if given.get("task", self.task) != self.task:
            raise DataError(f"the `task` is {self.task!r} and, among the options, {given['task']!r}: give one of them")
        return {**given, "task": self.task}

    def _check_columns(self) -> None:
        if self.label is None:
            raise DataError(f"{self.data}: name the column that holds the labels (--label)")
        if not any(getattr(self, name) for name in COLUMNS):
            raise DataError(
                f"{self.data}: name at least one column to learn from (--image, --text, --audio, --vector; two or more "
                "for a mutual equilibrium)"
            )
        if not Path(self.data).is_file():
            raise DataError(f"{self.data}: there is no such file{nearest_beside(Path(self.data))}")
        if self.root is not None and not self.root.is_dir():
            raise DataError(f"{self.root} is not a folder: the paths of pictures and sounds in {self.data} begin there")

    def _check_named(self) -> None:
        if self.data not in DATA_SETS:
            folder = Path(self.data).parent
            tables = [str(each) for each in folder.iterdir() if is_table(each)] if folder.is_dir() else []
            close = difflib.get_close_matches(self.data, tables, n=1, cutoff=0.6)
            meant = f"did you mean the table {close[0]!r}? " if close else ""
            raise DataError(
                f"there is no data set {self.data!r}: {meant}{nearest(self.data, DATA_SETS)} Or give a table "
                "of your own: a path that ends in .csv, .tsv, .jsonl or .parquet."
            )
        named = [f"`{name}`" for name in (*COLUMNS, *PLACES, "task") if getattr(self, name)]
        if named:
            raise DataError(f"{self.data!r} knows its own columns: leave out {', '.join(named)}")


def nearest_beside(path: Path) -> str:
    """For a file that is not there: the nearest name in its folder, as the end of a sentence."""
    if not path.parent.is_dir():
        return f", nor a folder {path.parent}"
    close = difflib.get_close_matches(path.name, [each.name for each in path.parent.iterdir()], n=1, cutoff=0.6)
    return f": did you mean {str(path.with_name(close[0]))!r}?" if close else ""


def parse_options(settings: Sequence[str]) -> dict[str, Any]:
    """["seed=1", "kinds=[\\"binding\\"]", "split=paper"] as a dictionary; values are JSON, or else plain text."""
    options: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise DataError(f"an option is written NAME=VALUE, got {setting!r}")
        try:
            options[name] = parse_json(value)
        except JsonError:
            options[name] = value
    return options


# -- values of options, as `--set NAME=VALUE` gives them, judged before a file is opened -------------------------------

WORDS: Mapping[Any, str] = {
    **{bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"},
    type(None): "null",
}


def check_option_values(
    options: Mapping[str, Any], read: Callable[..., Any], label: str, *, without: Sequence[str] = ()
) -> None:
    """An error for an option that `read` does not have, or whose value is of another kind than its annotation says.

    `without` are parameters that are given in another way: a folder, or the columns of a table.
    """
    names = [name for name in inspect.signature(read).parameters if name not in without]
    kinds = get_type_hints(read)
    for name, value in options.items():
        if name not in names:
            raise DataError(f"{label} has no option {name!r}: {nearest(name, names)}")
        if not fits(value, kinds.get(name, Any)):
            raise DataError(f"the option {name!r} of {label} must be {described(kinds[name])}, got {value!r:.100}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a plain value is of an annotated kind; what is no kind of plain value is let through."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(x, inner[1]) for k, x in value.items())
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return isinstance(value, Sequence) and not isinstance(value, str) and all(fits(x, inner[0]) for x in value)
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return isinstance(value, Path | str if kind is Path else kind) if kind in WORDS else True


def described(kind: Any) -> str:
    """A kind in words: "a whole number, or null"."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return ", or ".join(described(each) for each in inner)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f'names with {described(inner[1]).removeprefix("a ")}s, as in {{"train": 0.8, "dev": 0.2}}'
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f'a list of {described(inner[0]).removeprefix("a ")}s, as in ["a", "b"]'
    return WORDS.get(kind, str(getattr(kind, "__name__", kind)))
