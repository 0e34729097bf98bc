from __future__ import annotations

import pytest
import torch

from meq.data import Example, collate
from meq.data.statements import COLOURS, SHAPES, WORDS, statements

DATA = statements(train=400, dev=100, test=40)


def words_of(example: Example) -> list[str]:
    return [WORDS[int(token[: len(WORDS)].argmax())] for token in example.content["text"]]


def objects_of(example: Example) -> set[tuple[str, str]]:
    cells = [cell for cell in example.content["image"] if cell[: len(COLOURS)].any()]
    colours, shapes = slice(0, len(COLOURS)), slice(len(COLOURS), len(COLOURS) + len(SHAPES))
    names = [(cell[colours].argmax(), cell[shapes].argmax()) for cell in cells]
    return {(COLOURS[int(colour)], SHAPES[int(shape)]) for colour, shape in names}


def test_every_label_is_the_truth_of_its_statement() -> None:
    for split in DATA.splits.values():
        for example in split:
            *_, colour, thing = words_of(example)
            seen = objects_of(example)
            true = (colour, thing) in seen if thing in SHAPES else colour in {each for each, _ in seen}
            assert int(example.target) == int(true), example.id


def test_a_false_binding_shows_both_its_colour_and_its_shape() -> None:
    for example in DATA.splits["train"]:
        *_, colour, thing = words_of(example)
        if thing in SHAPES and not example.target:
            assert colour in {each for each, _ in objects_of(example)}
            assert thing in {each for _, each in objects_of(example)}


def test_labels_and_kinds_are_balanced_and_ids_unique() -> None:
    train = DATA.splits["train"]
    assert sum(int(example.target) for example in train) == 200
    assert sum(words_of(example)[-1] == "thing" for example in train) == 200
    assert len({example.id for split in DATA.splits.values() for example in split}) == 540


def test_the_same_arguments_give_the_same_set_and_others_another() -> None:
    assert statements(train=20, dev=4, test=4).fingerprint() == statements(train=20, dev=4, test=4).fingerprint()
    assert (
        statements(train=20, dev=4, test=4, seed=1).fingerprint() != statements(train=20, dev=4, test=4).fingerprint()
    )


def test_collation_pads_masks_and_leaves_out_what_nobody_has() -> None:
    def example(name: str, **features: torch.Tensor) -> Example:
        return Example(id=name, content=features, target=torch.tensor(0))

    widths = {"image": 3, "text": 2, "audio": 4}
    batch = collate(
        [example("a", image=torch.ones(2, 3), text=torch.ones(1, 2)), example("b", image=torch.ones(3))], widths
    )
    assert batch.ids == ["a", "b"]
    assert set(batch.features) == {"image", "text"}
    assert batch.masks["image"].tolist() == [[True, True], [True, False]]
    assert batch.masks["text"].tolist() == [[True], [False]]
    with pytest.raises(ValueError, match=r"example 'c': 'image' has shape \(2, 5\), expected \(N, 3\)"):
        collate([example("c", image=torch.ones(2, 5))], widths)
