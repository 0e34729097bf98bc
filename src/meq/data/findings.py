"""What reading a data set brings up: bad lines, missing files, broken pictures, each with its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from meq.errors import shown
from meq.options import nearest

OnBad = Literal["raise", "skip"]
LINE = 300
"""Characters of what is said about one finding."""
FIRST = 3
"""How many findings an error quotes."""


class DataError(ValueError):
    """Something in the data is wrong; the message says what, where, and what to do.

    What files hold may be quoted in it: it is shown on one line, without control characters and never long. `more` are
    further lines, such as the findings that led to it.
    """

    def __init__(self, message: str, *more: str) -> None:
        super().__init__(shown(message), *(shown(line, LINE) for line in more))

    def __str__(self) -> str:
        return "\n  ".join(self.args)


def check_choice(what: str, value: object, known: Iterable[str]) -> None:
    """An error unless the value is one of those known; `what` is its part of the sentence, such as "mosei: layout"."""
    known = list(known)
    if value not in known:
        raise DataError(f"{what} cannot be {value!r}: {nearest(str(value), known)}")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, and where."""

    kind: str
    """What findings are counted by: a short phrase such as "missing picture"."""
    message: str
    file: str
    line: int | None = None

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{place}: {self.message}"

    def as_error(self) -> DataError:
        return DataError(f"{self} (skip such rows with on_bad='skip', or --skip-bad)")


@dataclass
class Findings:
    """The first finding is an error, or, where skipping was asked for, all of them are counted.

    A reader reports what it cannot use and goes on without it: whether that is possible is decided here.
    """

    on_bad: OnBad = "raise"
    kept: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    absent: list[str] = field(default_factory=list)
    """Parts of the data set that are not there, which is no fault: a split nobody has, a set without pictures."""
    notes: list[str] = field(default_factory=list)
    """What was decided while reading that somebody may want otherwise, in sentences."""
    keep_each: int = 1000
    """How many findings of each kind are kept, so that frequent ones do not crowd out rare ones; all are counted."""

    def __post_init__(self) -> None:
        if self.on_bad not in ("raise", "skip"):
            raise ValueError(f"on_bad has no mode {self.on_bad!r}: {nearest(self.on_bad, ['raise', 'skip'])}")

    def report(self, kind: str, message: str, *, file: Path | str, line: int | None = None) -> None:
        finding = Finding(kind=kind, message=shown(message, LINE), file=shown(file, LINE), line=line)
        if self.on_bad == "raise":
            raise finding.as_error()
        self.counts[kind] += 1
        if self.counts[kind] <= self.keep_each:
            self.kept.append(finding)

    def first(self) -> list[str]:
        """The first few as lines of an error, and how many more there are."""
        quoted = [str(finding) for finding in self.kept[:FIRST]]
        rest = len(self) - len(quoted)
        return [*quoted, f"and {rest:,} more"] if rest and quoted else quoted

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.kept)

    def __len__(self) -> int:
        return sum(self.counts.values())
