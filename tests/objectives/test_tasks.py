from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from meq.models.heads import HEADS
from meq.objectives import task_loss
from meq.objectives.tasks import SHAPED, TASKS, WEIGHTED, shaped_loss

LOGITS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).double()
CLASSES = torch.tensor([3, 0, 2])


def test_every_kind_of_head_has_a_loss():
    assert TASKS.keys() == HEADS.keys()


@pytest.mark.parametrize("kind", ["classes", "choices"])
def test_classes_and_choices_are_cross_entropy_per_sample(kind):
    loss = task_loss(kind)(LOGITS, CLASSES.int())
    assert loss.shape == (3,)
    torch.testing.assert_close(loss.mean(), F.cross_entropy(LOGITS, CLASSES))


def test_labels_are_binary_cross_entropy_summed_over_the_labels():
    soft = torch.rand(3, 4)
    expected = F.binary_cross_entropy(LOGITS.sigmoid(), soft.double(), reduction="none").sum(1)
    torch.testing.assert_close(task_loss("labels")(LOGITS, soft), expected)


@pytest.mark.parametrize("column", [False, True])
def test_a_score_is_judged_by_its_square_near_the_target_and_by_its_distance_far_off(column):
    score, target = torch.tensor([[1.5], [3.0], [-4.0]]), torch.tensor([1.0, 0.0, 0.0])
    loss = task_loss("score")(score, target[:, None] if column else target)
    torch.testing.assert_close(loss, torch.tensor([0.125, 2.5, 3.5]))


def test_ordinal_takes_log_probabilities_as_they_are():
    log_probabilities = LOGITS.log_softmax(1)
    torch.testing.assert_close(task_loss("ordinal")(log_probabilities, CLASSES), task_loss("classes")(LOGITS, CLASSES))


def test_tokens_are_the_mean_of_the_asked_tokens_cross_entropies():
    logits = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1)).double()
    target = torch.tensor([[0, 1, 2, 3, 0], [3, -1, -1, 1, -1], [-1, -1, -1, -1, -1]])
    loss = task_loss("tokens")(logits, target)
    whole = F.cross_entropy(logits[0], target[0])
    some = (F.cross_entropy(logits[1, :1], target[1, :1]) + F.cross_entropy(logits[1, 3:4], target[1, 3:4])) / 2
    torch.testing.assert_close(loss, torch.stack([whole, some, torch.zeros_like(some)]))


def test_a_token_that_is_not_asked_gets_no_gradient():
    logits = torch.randn(2, 3, 4).requires_grad_()
    task_loss("tokens")(logits, torch.tensor([[0, -1, 2], [-1, -1, -1]])).sum().backward()
    assert logits.grad.abs().sum(-1).gt(0).tolist() == [[True, False, True], [False, False, False]]


def test_rough_answers_per_token_are_judged_in_float32():
    assert task_loss("tokens")(torch.randn(1, 2, 3).bfloat16(), torch.tensor([[1, 2]])).dtype == torch.float32


@pytest.mark.parametrize(
    ("target", "words", "error"),
    [
        (torch.tensor([[0, 4, 1], [0, 0, 0]]), r"at most 3; rows \[0\] have tokens beyond", ValueError),
        (torch.zeros(2, 2).long(), r"shape \(2, 2\); with these logits it must be \(2, 3\)", ValueError),
        (torch.zeros(2, 3), "whole numbers", TypeError),
    ],
)
def test_a_target_that_does_not_fit_the_tokens_is_an_error_in_words(target, words, error):
    with pytest.raises(error, match=words):
        task_loss("tokens")(torch.randn(2, 3, 4), target)


def test_logits_without_a_token_axis_are_no_answers_per_token():
    with pytest.raises(ValueError, match=r"shape \(B N C\), got \(3, 4\)"):
        task_loss("tokens")(LOGITS, CLASSES)


def test_rough_logits_are_judged_in_float32():
    assert task_loss("classes")(LOGITS.bfloat16(), CLASSES).dtype == torch.float32


def test_an_unknown_task_is_answered_with_the_nearest_one():
    with pytest.raises(ValueError, match="did you mean 'classes'"):
        task_loss("clases")


@pytest.mark.parametrize(
    ("kind", "target", "words"),
    [
        ("classes", torch.tensor([0, 4, -1]), r"between 0 and 3; rows \[1, 2\] do not, the first is 4"),
        ("ordinal", torch.tensor([0, 1, 9]), r"rows \[2\]"),
        ("choices", torch.tensor([0, 1]), r"shape \(2,\); with these logits it must be \(3,\)"),
        ("labels", torch.full((3, 4), 1.5), r"in \[0, 1\]; rows \[0, 1, 2\]"),
        ("labels", torch.rand(3), r"must be \(3, 4\)"),
        ("labels", torch.full((3, 4), torch.nan), r"must be finite; rows \[0, 1, 2\]"),
    ],
)
def test_a_wrong_target_is_named_with_its_rows(kind, target, words):
    with pytest.raises(ValueError, match=words):
        task_loss(kind)(LOGITS, target)


@pytest.mark.parametrize(("kind", "target"), [("classes", torch.rand(3)), ("labels", torch.ones(3, 4).long())])
def test_a_target_of_the_wrong_type_is_refused(kind, target):
    with pytest.raises(TypeError, match="the target must be"):
        task_loss(kind)(LOGITS, target)


def test_a_score_of_several_numbers_is_refused():
    with pytest.raises(ValueError, match="one number per sample"):
        task_loss("score")(LOGITS, torch.rand(3))


WEIGHTS = (0.5, 1.0, 2.0, 3.0)


def test_a_class_weight_multiplies_the_loss_of_the_samples_of_that_class():
    expected = F.cross_entropy(LOGITS, CLASSES, weight=torch.tensor(WEIGHTS).double(), reduction="none")
    torch.testing.assert_close(shaped_loss("classes", weights=WEIGHTS)(LOGITS, CLASSES), expected)
    ordinal = shaped_loss("ordinal", weights=WEIGHTS)(LOGITS.log_softmax(1), CLASSES)
    torch.testing.assert_close(ordinal, expected)


@pytest.mark.parametrize("kind", ["classes", "choices"])
def test_smoothed_labels_are_those_of_torch(kind):
    expected = F.cross_entropy(LOGITS, CLASSES, label_smoothing=0.2, reduction="none")
    torch.testing.assert_close(shaped_loss(kind, smoothing=0.2)(LOGITS, CLASSES), expected)


def test_a_choice_that_is_impossible_gets_no_share_of_a_smoothed_label():
    logits = LOGITS.clone()
    logits[:, 1] = -torch.inf
    expected = F.cross_entropy(logits[:, [0, 2, 3]], torch.tensor([2, 0, 1]), label_smoothing=0.2, reduction="none")
    torch.testing.assert_close(shaped_loss("choices", smoothing=0.2)(logits, CLASSES), expected)


def test_tokens_are_weighted_each_by_its_own_class():
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)).double()
    target = torch.tensor([[0, 3, -1], [-1, -1, -1]])
    each = F.cross_entropy(logits[0, :2], target[0, :2], reduction="none", label_smoothing=0.1)
    expected = (each * torch.tensor([0.5, 3.0]).double()).mean()
    found = shaped_loss("tokens", weights=WEIGHTS, smoothing=0.1)(logits, target)
    torch.testing.assert_close(found, torch.stack([expected, torch.zeros_like(expected)]))


def test_of_several_labels_the_weight_is_that_of_having_one():
    soft = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0.5, 0]])
    expected = F.binary_cross_entropy_with_logits(
        LOGITS, soft.double(), pos_weight=torch.tensor(WEIGHTS).double(), reduction="none"
    ).sum(1)
    torch.testing.assert_close(shaped_loss("labels", weights=WEIGHTS)(LOGITS, soft), expected)
    smoothed = shaped_loss("labels", smoothing=0.2)(LOGITS, soft)
    torch.testing.assert_close(smoothed, TASKS["labels"](LOGITS, soft * 0.8 + 0.1))


def test_what_changes_nothing_is_the_plain_loss():
    assert shaped_loss("classes") is TASKS["classes"]
    assert set(WEIGHTED) < set(SHAPED) < set(TASKS)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("score", {"weights": (1.0,)}, "class_weight has no meaning for the task 'score', where there are no classes"),
        ("choices", {"weights": (1.0, 2.0)}, "class_weight has no meaning for the task 'choices'"),
        ("score", {"smoothing": 0.1}, "label_smoothing has no meaning for the task 'score'"),
    ],
)
def test_weights_and_smoothing_are_refused_where_they_have_no_meaning(kind, options, message):
    with pytest.raises(ValueError, match=message):
        shaped_loss(kind, **options)
