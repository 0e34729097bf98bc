"""scenes: pictures of coloured shapes, partly covered, and statements that are true, false or open of them.

Generated from a seed; nothing to download. Labels are those of possible worlds (`scenes_worlds`). The set is made of
groups of three pictures and three statements whose nine labels form a Latin square: every picture meets one statement
of each label, and every statement one picture of each. So the label counts are uniform given the picture alone, its
covers and colours included, and given the statement alone; what is left to learn is in the pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Bool

from meq.data.content import DrawnPicture
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows, plain_example
from meq.data.metrics import ACCURACY
from meq.data.scenes_drawing import Dice, Scene, draw_scene, mask_of
from meq.data.scenes_worlds import (
    CELLS,
    COLOURS,
    COVERED,
    EMPTY,
    GRID,
    KINDS,
    LABELS,
    RELATIONS,
    SHAPES,
    THINGS,
    Cells,
    Statement,
    Thing,
    spoken_of,
)
from meq.options import checked_options, nearest

GROUP = 9
"""Three pictures with three statements each."""
SQUARES = np.array([[[0, 1, 2], [1, 2, 0], [2, 0, 1]], [[0, 1, 2], [2, 0, 1], [1, 2, 0]]])
"""The Latin squares of order three, up to the order of their columns: labels by picture and statement."""
PROPOSALS = 96
"""Scenes drawn at once, of which the best that has the wanted labels is taken."""
MOST_COVERS = 3
REASONS = ("it can be seen", "it depends on what a cover hides", "it is false, whatever the covers hide")
"""By label."""
RULE = (
    "Beneath a cover is nothing, or a thing of the cover's own colour. A statement that is true whatever the covers "
    "hide is an entailment, one that is false whatever they hide is a contradiction, any other is neutral."
)
RELATION_RULE = " Left, right, above and below go by columns and rows of the three by three cells."


@checked_options
def scenes(
    *,
    train: int = 7200,
    dev: int = 900,
    test: int = 900,
    kinds: Sequence[str] = ("existence", "binding"),
    covered: int = 2,
    camouflaged: float = 0.25,
    size: int = 96,
    seed: int = 0,
) -> DataSet:
    """Generate the set; the same arguments always give the same examples.

    `kinds`: existence, binding, relation, chain (a relation of a relation). `covered`: the most covers a picture has;
    the least is one. `camouflaged`: the share of things in the ground's texture and half of its colour. `size`: pixels
    of a side. Splits share no scene, and dev and test do not change with the size of train.
    """
    kinds = _checked_kinds(kinds)
    counts = {"test": test, "dev": dev, "train": train}
    _check(counts, kinds, covered=covered, camouflaged=camouflaged, size=size)
    used: set[bytes] = set()
    rows = {name: list(_rows(name, count, kinds, covered, seed, used)) for name, count in counts.items()}
    rule = RULE + (RELATION_RULE if {"relation", "chain"} & set(kinds) else "")
    make = partial(_example, hidden_permille=round(1000 * camouflaged), size=size, seed=seed)
    return DataSet(
        name="scenes",
        splits={name: Rows(rows[name], make) for name in ("train", "dev", "test")},
        modalities={"image": IMAGE, "text": TEXT},
        labels=LABELS,
        head="classes",
        metric=ACCURACY,
        facts={
            **{"train": train, "dev": dev, "test": test, "kinds": list(kinds), "covered": covered},
            **{"camouflaged": camouflaged, "size": size, "seed": seed, "grid": GRID, "rule": rule},
        },
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One example, before it is drawn."""

    split: str
    number: int
    picture: int
    cells: tuple[int, ...]
    statement: Statement
    label: int


@dataclass(frozen=True, slots=True)
class Masks:
    """Called, it draws the exact masks of what a statement speaks of, as boolean arrays of the picture's size."""

    scene: Scene
    statement: Statement

    def __call__(self) -> dict[str, Bool[np.ndarray, "H W"]]:
        """`things`: what makes the statement true, empty unless it is. `covers`: those that may hide what it names."""
        shown, hiding = spoken_of(self.statement, np.array([self.scene.cells]))
        return {"things": mask_of(self.scene, shown), "covers": mask_of(self.scene, hiding)}


def _example(row: _Row, *, hidden_permille: int, size: int, seed: int) -> Example:
    seeds = (seed, _stream(row.split), row.picture, 1)
    dice = Dice((*seeds, 1))
    scene = Scene(
        cells=row.cells,
        camouflaged=tuple(bool(each < hidden_permille) for each in dice.draw(1000, CELLS)),
        size=size,
        seeds=seeds,
    )
    name = f"{row.split}-{row.picture}"
    return plain_example(
        id=f"{row.split}-{row.number}",
        content={
            "image": DrawnPicture(f"scene {name}", partial(draw_scene, scene)),
            "text": str(row.statement),
        },
        target=row.label,
        facts={
            "kind": row.statement.kind,
            "hops": row.statement.hops,
            "picture": name,
            "because": REASONS[row.label],
            "covers": sum(held >= COVERED for held in row.cells),
            "things": tuple(_describe(scene, cell) for cell in range(CELLS) if row.cells[cell] < THINGS),
            "masks": Masks(scene, row.statement),
        },
    )


def _describe(scene: Scene, cell: int) -> str:
    colour, shape = divmod(scene.cells[cell], len(SHAPES))
    row, column = divmod(cell, GRID)
    hidden = ", camouflaged" if scene.camouflaged[cell] else ""
    return f"{COLOURS[colour]} {SHAPES[shape]} in row {row + 1}, column {column + 1}{hidden}"


# -- groups ------------------------------------------------------------------------------------------------------------


def _rows(split: str, count: int, kinds: Sequence[str], covered: int, seed: int, used: set[bytes]) -> Iterator[_Row]:
    for number in range(count // GROUP):
        dice = Dice((seed, _stream(split), number, 0))
        kind = kinds[number % len(kinds)]
        while (group := _try_group(split, number, kind, dice=dice, covered=covered, used=used)) is None:
            pass  # other statements: three that contradict each other in their demands are rare, but there are such
        yield from group


def _try_group(split: str, number: int, kind: str, *, dice: Dice, covered: int, used: set[bytes]) -> list[_Row] | None:
    """Three statements of a kind and a scene for each row of a Latin square, or None if one was not found."""
    statements: list[Statement] = []
    while len(statements) < 3:
        if (statement := _statement(kind, dice)) not in statements:
            statements.append(statement)
    square = SQUARES[dice.one(2)]
    found = []
    for labels in square:
        cells = _find_scene(statements, labels, dice, covered=covered, used=used)
        if cells is None:
            return None
        found.append(tuple(cells.tolist()))
    used.update(bytes(cells) for cells in found)
    return [
        _Row(
            split=split,
            number=GROUP * number + 3 * picture + place,
            picture=3 * number + picture,
            cells=cells,
            statement=statement,
            label=int(square[picture, place]),
        )
        for picture, cells in enumerate(found)
        for place, statement in enumerate(statements)
    ]


def _find_scene(
    statements: Sequence[Statement], labels: np.ndarray, dice: Dice, *, covered: int, used: set[bytes]
) -> np.ndarray | None:
    """A scene with these labels among the proposed ones: every other time the one with most lures, else with fewest.

    With lures alone, shapes would tell nothing before they are bound to colours, and binding would be slow to learn.
    """
    covers = 1 + dice.one(covered)
    proposed = _propose(statements, labels, dice, covers)
    right = [statement.labels(proposed) == label for statement, label in zip(statements, labels, strict=True)]
    proposed = proposed[np.all([*right, (proposed >= COVERED).sum(1) == covers], axis=0)]
    lures = np.sum([statement.lures(proposed) for statement in statements], axis=0)
    for place in np.argsort(lures if dice.one(2) else -lures, kind="stable"):
        if bytes(proposed[place].tolist()) not in used:
            return proposed[place]
    return None


def _propose(statements: Sequence[Statement], labels: np.ndarray, dice: Dice, covers: int) -> Cells:
    """Scenes of things that the statements name, things that share a colour or shape with them, and others.

    What should be entailed is put in, what should be neutral is put in with one of its things covered; whether the
    labels are right is for the caller to see.
    """
    named = [_number(thing, dice) for statement in statements for thing in statement.things]
    near = [_changed(thing, dice) for thing in named for _ in range(2)]
    pot = np.array([*named, *near, *dice.draw(THINGS, 3).tolist()])
    cells = pot[dice.draw(len(pot), PROPOSALS, CELLS)]
    cells[dice.draw(10, PROPOSALS, CELLS) < 4] = EMPTY
    order = np.argsort(dice.draw(1 << 32, PROPOSALS, CELLS), axis=1, kind="stable")
    hidden = order < covers - 1  # one more is put in with what should be neutral
    cells = np.where(hidden, COVERED + dice.draw(len(COLOURS), PROPOSALS, CELLS), cells)
    for label in (1, 0):
        _plant(statements[int(np.flatnonzero(labels == label)[0])], cells, dice, one_covered=label == 1)
    return cells


def _plant(statement: Statement, cells: Cells, dice: Dice, *, one_covered: bool) -> None:
    """Put what a statement names into every scene, in cells where it is true; or all but one thing, and a cover."""
    layouts = statement.layouts()
    chosen = layouts[dice.draw(len(layouts), len(cells))]
    hidden = dice.draw(len(statement.things), len(cells))
    for place, thing in enumerate(statement.things):
        covered = one_covered & (hidden == place)
        cells[np.arange(len(cells)), chosen[:, place]] = np.where(covered, COVERED + thing.colour, _number(thing, dice))


def _statement(kind: str, dice: Dice) -> Statement:
    if kind == "existence":
        return Statement(kind, (Thing(dice.one(len(COLOURS))),))
    count, relations = {"binding": 1, "relation": 2, "chain": 3}[kind], list(RELATIONS)
    numbers = np.argsort(dice.draw(1 << 32, THINGS), kind="stable")[:count]
    things = tuple(Thing(*divmod(int(number), len(SHAPES))) for number in numbers)
    return Statement(kind, things, tuple(relations[dice.one(len(relations))] for _ in things[1:]))


def _number(thing: Thing, dice: Dice) -> int:
    """What a cell holds that shows it, its shape drawn where none is asked for."""
    return thing.colour * len(SHAPES) + (dice.one(len(SHAPES)) if thing.shape is None else thing.shape)


def _changed(thing: int, dice: Dice) -> int:
    """A thing of another colour or another shape, not both."""
    colour, shape = divmod(thing, len(SHAPES))
    if dice.one(2):
        return (colour + 1 + dice.one(len(COLOURS) - 1)) % len(COLOURS) * len(SHAPES) + shape
    return colour * len(SHAPES) + (shape + 1 + dice.one(len(SHAPES) - 1)) % len(SHAPES)


def _stream(split: str) -> int:
    return ("train", "dev", "test").index(split)


# -- what is asked for -------------------------------------------------------------------------------------------------


def _checked_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    kinds = tuple(kinds.split(",")) if isinstance(kinds, str) else tuple(kinds)
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"scenes has no statements of kind {kind!r}: {nearest(kind, KINDS)}")
    if not kinds or len(set(kinds)) < len(kinds):
        got = ", ".join(kinds) or "none"
        raise ValueError(f"scenes: kinds must be some of {', '.join(KINDS)}, each once; got {got}")
    return kinds


def _check(counts: dict[str, int], kinds: tuple[str, ...], *, covered: int, camouflaged: float, size: int) -> None:
    unit = GROUP * len(kinds)
    for name, count in counts.items():
        if count < 0 or count % unit:
            near = max(unit, round(count / unit) * unit)
            raise ValueError(
                f"scenes: {name} must be a multiple of {unit} (three pictures x three statements for each of "
                f"{len(kinds)} kinds), or label counts could not be uniform; got {count}, try {near}"
            )
    if not 1 <= covered <= MOST_COVERS:
        raise ValueError(f"scenes: covered must lie between 1 and {MOST_COVERS}, got {covered}")
    if not 0 <= camouflaged <= 1:
        raise ValueError(f"scenes: camouflaged is a share, between 0 and 1; got {camouflaged}")
    if size % GRID or not 48 <= size <= 1536:
        raise ValueError(f"scenes: size must be a multiple of {GRID} from 48 to 1536 pixels, got {size}")
