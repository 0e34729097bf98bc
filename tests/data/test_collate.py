"""Examples as a batch: answers per token are padded as the tokens are, and one that does not fit is named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meq.data.contract import Example, collate

WIDTHS = {"image": 3, "text": 2}


def example(name: str, target: list[int] | Tensor | None, **tokens: int) -> Example:
    """So many tokens of each modality; 0: the modality is there without any; not named: it is missing."""
    content = {key: torch.full((count, WIDTHS[key]), float(count)) for key, count in tokens.items()}
    return Example(id=name, content=content, target=torch.tensor(target) if isinstance(target, list) else target)


def test_answers_are_padded_modality_by_modality_with_minus_one() -> None:
    rows = [example("a", [0, 1, 2, 3, 4], image=2, text=3), example("b", [5, 6, 7, 8], image=3, text=1)]
    batch = collate(rows, WIDTHS, ("image", "text"))
    assert batch.target.tolist() == [[0, 1, -1, 2, 3, 4], [5, 6, 7, 8, -1, -1]]
    assert batch.masks["image"].tolist() == [[True, True, False], [True, True, True]]
    real = torch.cat([batch.masks["image"], batch.masks["text"]], dim=1)
    assert torch.equal(batch.target >= 0, real), "answers stand where tokens do"


def test_the_order_of_answers_is_that_of_the_answering_modalities() -> None:
    batch = collate([example("a", [9, 8, 0, 1], image=2, text=2)], WIDTHS, ("text", "image"))
    assert batch.target.tolist() == [[9, 8, 0, 1]]
    longer = collate(
        [example("a", [9, 0, 1], image=2, text=1), example("b", [7, 6, 5], image=1, text=2)], WIDTHS, ("text", "image")
    )
    assert longer.target.tolist() == [[9, -1, 0, 1], [7, 6, 5, -1]]


def test_a_modality_that_does_not_answer_has_no_targets() -> None:
    batch = collate([example("a", [1, 0], image=4, text=2)], WIDTHS, ("text",))
    assert batch.target.tolist() == [[1, 0]]


def test_a_token_that_is_not_asked_stays_so() -> None:
    batch = collate([example("a", [-1, 2], text=2), example("b", [1, -1, -1], text=3)], WIDTHS, ("text",))
    assert batch.target.tolist() == [[-1, 2, -1], [1, -1, -1]]


def test_a_missing_modality_is_filled_up_for_one_example_and_is_one_place_where_nobody_has_it() -> None:
    rows = [example("a", [0, 1, 2], image=2, text=1), example("b", [3, 4], text=2)]
    assert collate(rows, WIDTHS, ("image", "text")).target.tolist() == [[0, 1, 2, -1], [-1, -1, 3, 4]]
    nobody = collate([example("b", [3, 4], text=2)], WIDTHS, ("image", "text"))
    assert nobody.features.keys() == {"text"}
    assert nobody.target.tolist() == [[-1, 3, 4]], "a model has one stand-in token for it"


@pytest.mark.parametrize(
    "target",
    [torch.tensor([0, 1]), torch.tensor([0, 1, 2, 3]), torch.zeros(3), torch.zeros(1, 3).long(), torch.tensor(1)],
    ids=["too few", "too many", "not whole", "a table", "one for all"],
)
def test_answers_that_do_not_fit_the_tokens_are_an_error_that_names_the_example(target: Tensor) -> None:
    rows = [example("good", [0, 1, 2], image=1, text=2), example("bad", target, image=1, text=2)]
    with pytest.raises(
        ValueError, match=r"example 'bad': .* 1 of 'image' and 2 of 'text' tokens: give one whole number"
    ):
        collate(rows, WIDTHS, ("image", "text"))


def test_examples_to_be_predicted_keep_their_zero_for_a_target() -> None:
    batch = collate([example("a", torch.zeros(()), text=2), example("b", torch.zeros(()), text=1)], WIDTHS, ("text",))
    assert batch.target.tolist() == [0, 0]


def test_an_example_without_answers_is_named() -> None:
    with pytest.raises(ValueError, match="example 'a' has no label"):
        collate([example("a", None, text=2)], WIDTHS, ("text",))
