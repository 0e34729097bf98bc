"""What a scene may hold, what can be said of it, and which statements are true in all, some or none of its completions.

A scene is a grid of cells. A cell is empty, shows one thing (a colour and a shape), or lies beneath a cover, and covers
have colours. There is one rule: beneath a cover is nothing, or one thing of the cover's own colour, of any shape. A
completion decides that for every cover, each independently of the others: a scene with n covers has (1 + shapes)^n
possible worlds. A statement is

- entailment when it is true in every completion,
- contradiction when it is true in none,
- neutral otherwise.

Without the rule, a cover could hide anything, and nothing that exists somewhere could ever be ruled out.

Statements only say that things exist, so that hiding nothing is the completion in which fewest of them are true: a
statement is entailed where the uncovered cells alone make it true. It is possible where each thing it names can be
given a cell of its own that shows it or has a cover of its colour. Both are decided for many scenes at once; the tests
compare with every completion, written out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

COLOURS = ("red", "green", "blue", "yellow")
SHAPES = ("circle", "square", "triangle", "star")
GRID = 3
CELLS = GRID * GRID
THINGS = len(COLOURS) * len(SHAPES)
EMPTY, COVERED = THINGS, THINGS + 1
"""What a cell holds: a thing, colour x shapes + shape; or nothing, EMPTY; or a cover, COVERED + its colour."""
LABELS = ("entailment", "neutral", "contradiction")
KINDS = ("existence", "binding", "relation", "chain")
"""Of growing depth: the hops of a statement are its kind's place in this list, from 1."""

Cells = Int[np.ndarray, "P 9"]
"""Scenes, a row of cells each, from the top left to the bottom right."""

ROWS, COLUMNS = np.divmod(np.arange(CELLS), GRID)
RELATIONS = {
    "left of": COLUMNS[:, None] < COLUMNS,
    "right of": COLUMNS[:, None] > COLUMNS,
    "above": ROWS[:, None] < ROWS,
    "below": ROWS[:, None] > ROWS,
}
"""Which cells stand in a relation to which: left of is in a column further left, whatever the rows."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A description: a colour, and a shape unless any will do."""

    colour: int
    shape: int | None = None

    def shown(self, cells: Cells) -> Bool[np.ndarray, "P 9"]:
        """Which uncovered cells show such a thing."""
        return self.colour_shown(cells) & self.shape_shown(cells)

    def colour_shown(self, cells: Cells) -> Bool[np.ndarray, "P 9"]:
        return (cells < THINGS) & (cells // len(SHAPES) == self.colour)

    def shape_shown(self, cells: Cells) -> Bool[np.ndarray, "P 9"]:
        return (cells < THINGS) & ((self.shape is None) | (cells % len(SHAPES) == self.shape))

    def hideable(self, cells: Cells) -> Bool[np.ndarray, "P 9"]:
        """Which cells have a cover that may hide such a thing."""
        return cells == COVERED + self.colour

    def __str__(self) -> str:
        return f"a {COLOURS[self.colour]} {'thing' if self.shape is None else SHAPES[self.shape]}"


@dataclass(frozen=True, slots=True)
class Statement:
    """Things that are said to exist: one, or several, each in a relation to the next."""

    kind: str
    things: tuple[Thing, ...]
    relations: tuple[str, ...] = ()

    @property
    def hops(self) -> int:
        return KINDS.index(self.kind) + 1

    def __str__(self) -> str:
        if not self.relations:
            return f"there is {self.things[0]}"
        words = f"{self.things[0]} is {self.relations[0]} {self.things[1]}"
        return words if len(self.relations) == 1 else f"{words} that is {self.relations[1]} {self.things[2]}"

    def labels(self, cells: Cells) -> Int[np.ndarray, " P"]:
        """The statement's label in each scene, as a place in LABELS."""
        sure = self.witnesses(cells).reshape(len(cells), -1).any(1)
        possible = self.witnesses(cells, covers_too=True).reshape(len(cells), -1).any(1)
        return np.where(sure, 0, np.where(possible, 1, 2))

    def witnesses(self, cells: Cells, *, covers_too: bool = False) -> Bool[np.ndarray, "P ..."]:
        """Which cells, one axis per thing, make the statement true; `covers_too`: would make it, rightly filled."""
        fits = [thing.shown(cells) | (covers_too & thing.hideable(cells)) for thing in self.things]
        if not self.relations:
            return fits[0]
        joint = fits[0][:, :, None] & fits[1][:, None, :] & RELATIONS[self.relations[0]]
        if len(self.relations) == 2:
            joint = joint[..., None] & fits[2][:, None, None, :] & RELATIONS[self.relations[1]]
            joint &= ~np.eye(CELLS, dtype=bool)[:, None, :]  # the first and the last differ: no cell can be both
        return joint

    def layouts(self) -> Int[np.ndarray, "L A"]:
        """All the ways to give each thing a cell so that the statement is true."""
        anywhere = np.ones((1, CELLS), dtype=int)
        free = Statement(self.kind, (Thing(0),) * len(self.things), self.relations)  # cells of 1 show a red thing
        return np.argwhere(free.witnesses(anywhere))[:, 1:]

    def lures(self, cells: Cells) -> Int[np.ndarray, " P"]:
        """How many of the colours and shapes it binds a scene shows, rightly bound or not.

        They make a false statement hard to tell from a true one.
        """
        bound = [thing for thing in self.things if thing.shape is not None]
        parts = [shown(cells).any(1) for thing in bound for shown in (thing.colour_shown, thing.shape_shown)]
        return np.sum([np.zeros(len(cells), dtype=int), *parts], axis=0)


def spoken_of(statement: Statement, cells: Cells) -> tuple[list[int], list[int]]:
    """The cells of one scene that show what the statement names, where it says; and the covers that may hide it."""
    shown: set[int] = set()
    hiding: set[int] = set()
    for place in np.argwhere(statement.witnesses(cells)):
        shown.update(int(cell) for cell in place[1:])
    for place in np.argwhere(statement.witnesses(cells, covers_too=True)):
        hiding.update(int(cell) for cell in place[1:] if cells[0, cell] >= COVERED)
    return sorted(shown), sorted(hiding)
