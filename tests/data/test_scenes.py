from __future__ import annotations

import itertools
import pickle
from collections import Counter

import numpy as np
import pytest

from meq.data import DATA_SETS, DataSet, Example, open_data
from meq.data.scenes import scenes
from meq.data.scenes_drawing import Dice, Scene, draw_scene, mask_of
from meq.data.scenes_worlds import (
    CELLS,
    COVERED,
    EMPTY,
    KINDS,
    LABELS,
    SHAPES,
    THINGS,
    Statement,
    Thing,
    spoken_of,
)

SMALL = scenes(train=360, dev=72, test=72, kinds=KINDS, covered=2)
DEFAULT = scenes(train=360, dev=72, test=72)
EVERYWHERE = [example for split in SMALL.splits.values() for example in split]


# -- truth, told without the code under test ---------------------------------------------------------------------------


def is_true(text: str, world: tuple[int, ...]) -> bool:
    """Whether an English statement is true of a world without covers, read from its words."""
    words = text.split()
    if words[0] == "there":
        return bool(cells_of(" ".join(words[3:]), world))
    main, _, rest = text.partition(" that is ")
    first, relation, second = parts_of(main.replace(" is ", " "))
    if not rest:
        return any(related(relation, a, b) for a in cells_of(first, world) for b in cells_of(second, world))
    next_relation, third = parts_of("a x " + rest)[1:]
    return any(
        related(relation, a, b) and related(next_relation, b, c)
        for a in cells_of(first, world)
        for b in cells_of(second, world)
        for c in cells_of(third, world)
    )


def parts_of(text: str) -> tuple[str, str, str]:
    for relation in ("left of", "right of", "above", "below"):
        if f" {relation} a " in text:
            first, second = text.split(f" {relation} a ")
            return first.removeprefix("a "), relation, second
    raise AssertionError(text)


def related(relation: str, a: int, b: int) -> bool:
    (row_a, column_a), (row_b, column_b) = divmod(a, 3), divmod(b, 3)
    return {
        "left of": column_a < column_b,
        "right of": column_a > column_b,
        "above": row_a < row_b,
        "below": row_a > row_b,
    }[relation]


def cells_of(description: str, world: tuple[int, ...]) -> list[int]:
    names = [(*name.split(), "thing") for name in THING_NAMES]
    return [cell for cell, held in enumerate(world) if held < THINGS and set(description.split()) <= set(names[held])]


THING_NAMES = [f"{colour} {shape}" for colour in ("red", "green", "blue", "yellow") for shape in SHAPES]


def label_by_enumeration(text: str, cells: tuple[int, ...]) -> str:
    """Every completion of the covered cells, written out."""
    covers = [cell for cell in range(CELLS) if cells[cell] >= COVERED]
    truths = set()
    for filling in itertools.product([None, *range(len(SHAPES))], repeat=len(covers)):
        world = list(cells)
        for cell, shape in zip(covers, filling, strict=True):
            world[cell] = EMPTY if shape is None else (cells[cell] - COVERED) * len(SHAPES) + shape
        truths.add(is_true(text, tuple(world)))
    return "neutral" if len(truths) == 2 else {True: "entailment", False: "contradiction"}[truths.pop()]


def cells_behind(example: Example) -> tuple[int, ...]:
    return example.facts["masks"].scene.cells


# -- the labels --------------------------------------------------------------------------------------------------------


def test_every_label_is_what_enumerating_all_completions_gives() -> None:
    for example in EVERYWHERE:
        expected = label_by_enumeration(str(example.content["text"]), cells_behind(example))
        assert LABELS[int(example.target)] == expected, (example.id, example.content["text"], cells_behind(example))


@pytest.mark.parametrize("kind", KINDS)
def test_reasoning_agrees_with_enumeration_on_scenes_nobody_selected(kind: str) -> None:
    dice = Dice((11, KINDS.index(kind)))
    statements = {example.facts["masks"].statement for example in EVERYWHERE if example.facts["kind"] == kind}
    seen = Counter()
    for statement in sorted(statements, key=str)[:20]:
        for _ in range(8):
            cells = dice.draw(COVERED + 4, 1, CELLS)
            label = LABELS[int(statement.labels(cells)[0])]
            if (cells >= COVERED).sum() <= 4:
                assert label == label_by_enumeration(str(statement), tuple(cells[0].tolist()))
                seen[label] += 1
    assert len(seen) > 1


def test_one_cover_cannot_hide_two_different_things() -> None:
    """ "A left of B that is above C": one covered cell could be either A or C, and no cell is both."""
    circle, square, star = Thing(0, 0), Thing(2, 1), Thing(0, 3)
    statement = Statement("chain", (circle, square, star), relations=("left of", "above"))
    cells = np.full((1, CELLS), EMPTY)
    cells[0, 1], cells[0, 3] = 2 * len(SHAPES) + 1, COVERED + 0  # blue square; red cover left of it and below
    assert LABELS[int(statement.labels(cells)[0])] == "contradiction"
    cells[0, 6] = COVERED + 0
    assert LABELS[int(statement.labels(cells)[0])] == "neutral"


# -- balance, exactly --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [SMALL, DEFAULT], ids=["all kinds", "default kinds"])
def test_label_counts_are_uniform_given_the_statement_alone_and_given_the_picture_alone(data: DataSet) -> None:
    for split in data.splits.values():
        for side in (lambda e: e.content["text"], lambda e: e.facts["picture"], lambda e: e.facts["kind"]):
            counts = Counter((side(example), int(example.target)) for example in split)
            for key in {key for key, _ in counts}:
                assert len({counts[key, label] for label in range(3)}) == 1, key


def test_covers_and_camouflage_occur_equally_often_under_every_label() -> None:
    for split in SMALL.splits.values():
        counts = Counter((int(e.target), e.facts["covers"], str(e.facts["things"])) for e in split)
        assert len({tuple(sorted((key[1:], n) for key, n in counts.items() if key[0] == y)) for y in range(3)}) == 1
        assert {e.facts["covers"] for e in split} == {1, 2}


def test_a_picture_is_seen_as_the_same_one_by_its_pixels() -> None:
    """Pictures are told apart above by name: names and pixels must agree."""
    by_name = {e.facts["picture"]: e.content["image"].fingerprint() for e in EVERYWHERE}
    assert len(set(by_name.values())) == len(by_name) == len(EVERYWHERE) // 3


def test_splits_share_no_scene_and_ids_are_unique() -> None:
    layouts = {name: {cells_behind(example) for example in split} for name, split in SMALL.splits.items()}
    assert sum(map(len, layouts.values())) == len(set().union(*layouts.values())) == len(EVERYWHERE) // 3
    assert len({example.id for example in EVERYWHERE}) == len(EVERYWHERE)


def test_many_bindings_that_are_not_entailed_show_both_their_colour_and_their_shape() -> None:
    shown = [
        int(row.statement.lures(np.array([row.cells]))[0])
        for row in DEFAULT.splits["train"].rows  # type: ignore[attr-defined]
        if row.statement.kind == "binding" and row.label != 0
    ]
    assert np.mean([each == 2 for each in shown]) > 0.4


# -- the contract ------------------------------------------------------------------------------------------------------


def test_the_same_arguments_give_the_same_set_and_others_another() -> None:
    def few(**options: object) -> str:
        return scenes(train=36, dev=18, test=18, **options).fingerprint()

    prints = {few(), few(seed=1), few(camouflaged=0.9), few(size=120), few(covered=1), few(kinds=("relation",))}
    assert few() in prints
    assert len(prints) == 6


def test_the_pictures_are_the_same_on_every_machine() -> None:
    """Written down once: a change of NumPy, Pillow or platform that alters a pixel is seen here."""
    data = scenes(train=18, dev=18, test=18)
    assert data.fingerprint()[:16] == "12c7a6d8d64b9390"


def test_dev_and_test_do_not_change_with_the_size_of_train() -> None:
    small, large = scenes(train=18, dev=36, test=36), scenes(train=180, dev=36, test=36)
    for split in ("dev", "test"):
        assert [cells_behind(e) for e in small.splits[split]] == [cells_behind(e) for e in large.splits[split]]


def test_hops_follow_the_kinds_and_the_set_is_found_by_name() -> None:
    assert {(example.facts["kind"], example.facts["hops"]) for example in EVERYWHERE} == {
        (kind, place + 1) for place, kind in enumerate(KINDS)
    }
    found = open_data("scenes", train=18, dev=18, test=18, kinds="relation,chain")
    assert Counter(example.facts["kind"] for example in found.splits["dev"]) == {"relation": 9, "chain": 9}
    assert DATA_SETS["scenes"].embedded
    assert found.facts["kinds"] == ["relation", "chain"]


def test_an_example_can_be_sent_to_another_process() -> None:
    example = SMALL.splits["dev"][0]
    again = pickle.loads(pickle.dumps(example.content["image"]))
    assert again.fingerprint() == example.content["image"].fingerprint()
    assert pickle.loads(pickle.dumps(example.facts["masks"]))()["things"].shape == (96, 96)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 100}, r"train must be a multiple of 18 .* got 100, try 108"),
        ({"kinds": ("bindings",)}, r"no statements of kind 'bindings': did you mean 'binding'\?"),
        ({"kinds": ()}, r"kinds must be some of .* got none"),
        ({"kinds": ("binding", "binding")}, r"each once"),
        ({"covered": 0}, r"covered must lie between 1 and 3, got 0"),
        ({"camouflaged": 1.5}, r"camouflaged is a share"),
        ({"size": 100}, r"size must be a multiple of 3 from 48"),
    ],
)
def test_wrong_options_are_refused_in_words(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scenes(**options)
    with pytest.raises(TypeError, match="did you mean 'covered'"):
        scenes(cover=1)


# -- pictures and masks ------------------------------------------------------------------------------------------------


def plain_scene(*held: int, camouflaged: bool = False) -> Scene:
    cells = (*held, *([EMPTY] * (CELLS - len(held))))
    return Scene(cells=cells, camouflaged=(camouflaged,) * CELLS, size=96, seeds=(5, 6))


@pytest.mark.parametrize("camouflaged", [False, True])
@pytest.mark.parametrize("shape", range(4))
def test_a_mask_is_exactly_where_a_thing_changes_the_picture(shape: int, camouflaged: bool) -> None:
    scene = plain_scene(shape, camouflaged=camouflaged)
    with_thing = np.asarray(draw_scene(scene)).astype(int)
    without = np.asarray(draw_scene(plain_scene(EMPTY))).astype(int)
    changed = np.abs(with_thing - without).max(2) > 12
    mask = mask_of(scene, [0])
    assert (changed == mask).mean() > 0.995
    assert not changed[~mask].any()
    assert mask[:32, :32].sum() == mask.sum() > 100
    assert not any(edge.any() for edge in (mask[0, :32], mask[31, :32], mask[:32, 0], mask[:32, 31]))


def test_camouflage_takes_contrast_away_but_not_all_of_it() -> None:
    for thing in range(THINGS):
        scene, hidden = plain_scene(thing), plain_scene(thing, camouflaged=True)
        mask = mask_of(scene, [0])
        contrast = [
            np.abs(picture[mask].mean(0) - picture[~mask].mean(0)).max()
            for picture in (np.asarray(draw_scene(each)).astype(float) for each in (scene, hidden))
        ]
        assert 20 < contrast[1] < 0.75 * contrast[0], THING_NAMES[thing]


def test_a_cover_hides_its_whole_cell() -> None:
    picture = np.asarray(draw_scene(plain_scene(COVERED, COVERED, COVERED + 1)))
    assert (picture[:32, :32] == picture[:32, 32:64]).all()
    assert not (picture[:32, :32] == picture[:32, 64:]).all()
    assert mask_of(plain_scene(EMPTY, COVERED), [1])[:32, 32:64].all()
    assert not (picture[:32, :32] == np.asarray(draw_scene(plain_scene(EMPTY)))[:32, :32]).all()


def test_the_masks_of_an_example_show_what_its_statement_speaks_of() -> None:
    for example in EVERYWHERE[::5]:
        masks = example.facts["masks"]()
        label = LABELS[int(example.target)]
        assert masks["things"].dtype == bool
        assert masks["things"].any() == (label == "entailment"), example.id
        if label != "entailment":
            assert masks["covers"].any() == (label == "neutral"), example.id


def test_spoken_of_names_the_cells_of_a_relation() -> None:
    statement = Statement("relation", (Thing(0, 0), Thing(2, 1)), relations=("left of",))
    cells = np.full((1, CELLS), EMPTY)
    cells[0, [0, 5, 3, 8, 7]] = [0, 2 * len(SHAPES) + 1, 0, COVERED + 2, COVERED + 1]
    assert spoken_of(statement, cells) == ([0, 3, 5], [8])  # the green cover hides neither
