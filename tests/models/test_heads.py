from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from models.zoo import PAIR, build, features_for

import meq
from meq.models.heads import HEADS, OrdinalHead, make_head


def test_an_ordinal_head_gives_log_probabilities_that_sum_to_one() -> None:
    head = make_head("ordinal", 6, 7, 5).double()
    with torch.no_grad():
        log_probabilities = head(20 * torch.randn(50, 6, dtype=torch.float64))
    assert log_probabilities.isfinite().all()
    torch.testing.assert_close(log_probabilities.exp().sum(1), torch.ones(50, dtype=torch.float64))


def test_an_ordinal_head_moves_up_the_classes_with_its_score() -> None:
    head = OrdinalHead(1, 5, 4).double()
    head.score = torch.nn.Identity()
    scores = torch.linspace(-9, 9, 61, dtype=torch.float64)[:, None]
    expected = head(scores).exp() @ torch.arange(5, dtype=torch.float64)
    assert (expected.diff() > 0).all()
    assert head(scores).argmax(1).unique().tolist() == [0, 1, 2, 3, 4]


def test_an_ordinal_head_keeps_its_digits_in_the_tails() -> None:
    head = OrdinalHead(1, 3, 4)
    head.score = torch.nn.Identity()
    far = torch.tensor([[-200.0], [200.0]])
    assert head(far).isfinite().all()


@pytest.mark.parametrize(("kind", "width"), [("classes", 4), ("labels", 4), ("score", 1), ("ordinal", 4)])
def test_a_head_answers_in_the_form_of_its_task(kind: str, width: int) -> None:
    model = build("pair", head=kind, classes=4)
    assert kind in HEADS
    assert model(features_for(model)).logits.shape == (4, width)


def test_multiple_choice_scores_each_choice_with_the_same_model() -> None:
    model = build("pair", head="choices", classes=1)
    image = features_for(model)["image"]
    text = torch.randn(4, 5, 3, 5, dtype=torch.float64)
    mask = torch.ones(4, 5, 3, dtype=torch.bool)
    mask[1, 2, 1:] = False
    logits = model({"image": image, "text": text}, {"text": mask}).logits
    assert logits.shape == (4, 5)
    for choice in range(5):
        one = model(
            {"image": image, "text": text[:, choice : choice + 1]}, {"text": mask[:, choice : choice + 1]}
        ).logits
        torch.testing.assert_close(one[:, 0], logits[:, choice])


def test_multiple_choice_without_choices_is_an_error() -> None:
    model = build("pair", head="choices", classes=1)
    with pytest.raises(ValueError, match=r"multiple choice needs modalities of shape \(B A N W\)"):
        model(features_for(model))


def test_an_ordinal_head_needs_an_order() -> None:
    with pytest.raises(ValueError, match="at least two classes"):
        meq.MutualEquilibrium(widths=PAIR, classes=1, dim=8, heads=2, head="ordinal")


@pytest.mark.parametrize(
    "build",
    [
        lambda: meq.FeatureSum({"image": 4, "text": 3}, 3, 8, heads=2, head="tokens"),
        lambda: meq.LowRankFusion({"image": 4, "text": 3}, 3, 8, head="tokens"),
        lambda: meq.MutualEquilibrium({"image": 4, "text": 3}, 3, 8, heads=2, mixer="mlp", head="tokens"),
    ],
)
def test_a_model_with_one_vector_per_modality_has_no_answer_per_token(build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="fuses one vector per modality, so its tokens have no answer of their own"):
        build()


@pytest.mark.parametrize(
    ("answering", "head", "words"),
    [
        (("txt",), "tokens", "unknown modality 'txt': did you mean 'text'"),
        ((), "tokens", "must name modalities, each once"),
        (("text", "text"), "tokens", "must name modalities, each once"),
        (("text",), "classes", "belongs to head='tokens'"),
    ],
)
def test_which_modalities_answer_is_checked(answering: tuple[str, ...], head: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        meq.MutualEquilibrium({"image": 4, "text": 3}, 3, 8, heads=2, head=head, answering=answering)


def test_only_the_modalities_that_are_asked_answer() -> None:
    model = meq.MutualEquilibrium({"image": 4, "text": 3}, 3, 8, heads=2, head="tokens", answering=("text",))
    output = model({"image": torch.randn(2, 5, 4), "text": torch.randn(2, 6, 3)})
    assert output.logits.shape == (2, 6, 3)
    assert output.answered.tolist() == [[True] * 6] * 2


def test_a_tree_answers_for_the_modalities_whose_states_are_read() -> None:
    widths, order = {"image": 4, "audio": 2, "text": 3}, (("image", "audio"), "text")
    model = meq.EquilibriumTree(widths, 3, 8, order=order, heads=2, head="tokens")
    assert model.answering == ("text",)
    with pytest.raises(ValueError, match="'image' cannot answer: the states that are read are"):
        meq.EquilibriumTree(widths, 3, 8, order=order, heads=2, head="tokens", answering=("image",))
